package netrule

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseHost(t *testing.T) {
	for in, want := range map[string]string{
		"example.org": "example.org", "EXAMPLE.Org": "example.org", "example.org.": "example.org", "a_b.example.org": "a_b.example.org", "xn--bcher-kva.example": "xn--bcher-kva.example", "localhost": "localhost",
		"1.2.3.4": "1.2.3.4", "1.2.3.4.": "1.2.3.4", "[2606:4700::1111]": "2606:4700::1111", "2606:4700:0:0::1111": "2606:4700::1111", "[2606:4700::ABCD]": "2606:4700::abcd", "1a.example": "1a.example", "127.0.0.1.example.org": "127.0.0.1.example.org",
		strings.Repeat("a", 63) + ".org": strings.Repeat("a", 63) + ".org", "az09.example": "az09.example",
		strings.Repeat("a.", maxName/2) + "b": strings.Repeat("a.", maxName/2) + "b",
	} {
		name, addr, err := ParseHost(in)
		if err != nil || name != want || addr.IsValid() != (strings.Contains(want, ":") || strings.Trim(want, "0123456789.") == "") {
			t.Errorf("%q: %q %v %v", in, name, addr, err)
		}
		if again, _, err := ParseHost(name); err != nil || again != name {
			t.Errorf("%q: canonical form %q is read as %q %v", in, name, again, err)
		}
	}
	for _, in := range []string{
		"", ".", "..", "a..b", ".a", "127.1", "127.0.1", "2130706433", "0x7f.1", "0x7f000001", "0x7F.0.0.1", "0X7F.1", "0x", "0177.0.0.1", "127.0.0.01", "1.2.3.4.5", "1.2.3.256", "127.0.0.1..", "a.1", "a.0x1", "example.017",
		"[127.0.0.1]", "[::1", "::1]", "[]", "[example.org]", "::ffff:127.0.0.1", "[::ffff:7f00:1]", "fe80::1%eth0", "[fe80::1%25eth0]", "[::1]x",
		"b\u00fccher.example", "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "ex%61mple.org", "a b", "a\x00b", "a\nb", "user@example.org", "a/b", "a\\b", "a#b", "a?b", "-a.org", "a-.org", "*.example.org", "\u212aexample.org",
		strings.Repeat("a", 64) + ".org", strings.Repeat("a.", 127) + "org",
	} {
		if name, addr, err := ParseHost(in); !errors.Is(err, ErrSpelling) {
			t.Errorf("%q: %q %v %v", in, name, addr, err)
		}
	}
}

func TestParseAuthority(t *testing.T) {
	for _, d := range []struct {
		in       string
		fallback int
		host     string
		port     int
	}{{"Example.org:8080", 80, "example.org", 8080}, {"example.org", 80, "example.org", 80}, {"[::1]:443", 0, "::1", 443}, {"[::1]", 80, "::1", 80}, {"1.2.3.4:65535", 0, "1.2.3.4", 65535}, {"a:19", 0, "a", 19}, {"a:90", 0, "a", 90}} {
		if host, _, port, err := ParseAuthority(d.in, d.fallback); err != nil || host != d.host || port != d.port {
			t.Errorf("%q: %q %d %v", d.in, host, port, err)
		}
	}
	for _, in := range []string{"example.org", "example.org:", "example.org:0", "example.org:080", "example.org:+80", "example.org:65536", "example.org: 80", "example.org:80a", "::1:443", "a:b:1", "[::1]:", "user@a:80", ":80", "a:1:80"} {
		if host, _, port, err := ParseAuthority(in, 0); !errors.Is(err, ErrSpelling) {
			t.Errorf("%q: %q %d %v", in, host, port, err)
		}
	}
}

// TestClip checks that a text is cut before a character that does not fit, and that of a
// text that is not UTF-8 as many bytes remain as fit.
func TestClip(t *testing.T) {
	for _, x := range []struct {
		in    string
		limit int
		want  string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"abé", 3, "ab"}, {"aé€", 3, "aé"}, {"a€b", 3, "a"}, {"a€b", 4, "a€"}, {"ab😀", 5, "ab"}, {"ab😀", 6, "ab😀"},
		{"€", 2, ""}, {"😀", 3, ""}, {"a\x80\x80\x80\x80\x80\x80", 5, "a\x80\x80\x80\x80"}, {"a", 0, ""},
	} {
		if got := Clip(x.in, x.limit); got != x.want {
			t.Errorf("%q to %d bytes: %q, want %q", x.in, x.limit, got, x.want)
		}
	}
	if _, _, err := ParseHost("a" + strings.Repeat("é", 60)); err == nil || !utf8.ValidString(err.Error()) || strings.Contains(err.Error(), `\x`) {
		t.Errorf("%v", err)
	}
}

// FuzzParseHost checks that a canonical form is read as itself, is in lower case, has at
// most maxName bytes, is an IP address only if ParseHost returns that address, and has no
// space, NUL or wildcard and none of the characters that separate parts of a URL, except
// the colons of an IPv6 address. It also checks that ParseAuthority returns that form and
// the port for a text without colons that is followed by a port.
func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"example.org", "127.1", "0x7f.1", "[::1]", "fe80::1%eth0", "a..b", "::ffff:1.2.3.4", "xn--a.b", "1.2.3.4."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, addr, err := ParseHost(s)
		if err != nil {
			return
		}
		again, addr2, err := ParseHost(name)
		if err != nil || again != name || addr2 != addr || strings.ContainsAny(name, " /\\@#?%[]*\x00") || name != strings.ToLower(name) || len(name) > maxName {
			t.Fatalf("%q: %q %v, then %q %v %v", s, name, addr, again, addr2, err)
		}
		if parsed, err := netip.ParseAddr(name); (err == nil) != addr.IsValid() || err == nil && parsed != addr {
			t.Fatalf("%q: %q is the address %v, not %v", s, name, parsed, addr)
		}
		if host, _, port, err := ParseAuthority(s+":443", 0); !strings.Contains(s, ":") && (err != nil || host != name || port != 443) {
			t.Fatalf("%q with a port: %q %d %v", s, host, port, err)
		}
	})
}
