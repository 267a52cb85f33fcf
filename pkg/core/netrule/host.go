package netrule

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrSpelling is wrapped by the errors of ParseHost and ParseAuthority.
var ErrSpelling = errors.New("not a canonical host name or address")

// maxName is the maximum length of a host name in bytes (RFC 1035, section 2.3.4).
const maxName = 253

// ParseHost returns the canonical form of a host name or address: names in lower case
// without a trailing dot, IPv6 addresses without brackets as in RFC 5952. addr is valid
// if the host is an address.
//
// ParseHost rejects spellings that programs read in different ways: IPv4 addresses other
// than four decimal numbers without leading zeros, IPv4-mapped IPv6 addresses, zone ids,
// percent-encoding, and names that contain characters other than ASCII letters, digits,
// hyphens and underscores. An internationalized name is accepted in its ASCII form
// (RFC 5890) only.
func ParseHost(s string) (name string, addr netip.Addr, err error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if !ok || !strings.Contains(inner, ":") {
			return "", netip.Addr{}, misspelt(s, "has a bracket without an IPv6 address")
		}
		s = inner
	}
	if strings.Contains(s, ":") {
		return parseIPv6(s)
	}
	return parseName(s)
}

// parseName is ParseHost for a host without a colon.
func parseName(s string) (string, netip.Addr, error) {
	if strings.ContainsFunc(s, func(r rune) bool { return r > '~' }) {
		return "", netip.Addr{}, misspelt(s, "has a character that is not ASCII") // ToLower maps some of them to ASCII
	}
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if s == "" || len(s) > maxName {
		return "", netip.Addr{}, misspelt(s, "has a wrong length")
	}
	if numeric(s[strings.LastIndexByte(s, '.')+1:]) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return "", netip.Addr{}, misspelt(s, "is a number but not a dotted IPv4 address")
		}
		return a.String(), a, nil
	}
	for label := range strings.SplitSeq(s, ".") {
		if !validLabel(label) {
			return "", netip.Addr{}, misspelt(s, "has an invalid label")
		}
	}
	return s, netip.Addr{}, nil
}

func parseIPv6(s string) (string, netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return "", netip.Addr{}, misspelt(s, "is not an IPv6 address")
	case a.Zone() != "":
		return "", netip.Addr{}, misspelt(s, "has a zone id")
	case a.Is4In6():
		return "", netip.Addr{}, misspelt(s, "is an IPv4-mapped address")
	}
	return a.String(), a, nil
}

func misspelt(s, why string) error { return fmt.Errorf("%w: %q %s", ErrSpelling, clip(s), why) }

// ParseAuthority splits "host:port" or "host" and returns the canonical host. fallback
// is the port of an authority without one; 0 makes the port required.
func ParseAuthority(s string, fallback int) (host string, addr netip.Addr, port int, err error) {
	port = fallback
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		port, err = parsePort(s[i+1:])
		if err != nil {
			return "", netip.Addr{}, 0, err
		}
		s = s[:i]
		if strings.Contains(s, ":") && !strings.HasPrefix(s, "[") {
			return "", netip.Addr{}, 0, fmt.Errorf("%w: an IPv6 address needs brackets", ErrSpelling)
		}
	}
	if port == 0 {
		return "", netip.Addr{}, 0, fmt.Errorf("%w: %q has no port", ErrSpelling, clip(s))
	}
	host, addr, err = ParseHost(s)
	return host, addr, port, err
}

// parsePort reads a port: decimal digits without a leading zero, from 1 to 65535.
func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] < '1' || s[0] > '9' {
		return 0, fmt.Errorf("%w: port %q", ErrSpelling, clip(s))
	}
	return int(n), nil
}

// numeric reports whether inet_aton or a browser reads a host with this last label as an
// IPv4 address: decimal and octal digits, or hexadecimal after "0x".
func numeric(label string) bool {
	if label == "" {
		return false
	}
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// validLabel reports whether a label in lower case has 1 to 63 letters, digits, hyphens
// and underscores, and neither begins nor ends with a hyphen.
func validLabel(s string) bool {
	return s != "" && len(s) <= 63 && !strings.HasPrefix(s, "-") && !strings.HasSuffix(s, "-") && strings.Trim(s, labelBytes) == ""
}

const labelBytes = "abcdefghijklmnopqrstuvwxyz0123456789-_"

// clip returns the beginning of s, for an error.
func clip(s string) string { return Clip(s, 80) }

// Clip returns at most the first limit bytes of s, and cuts no character of valid UTF-8
// in two. It is for texts of clients in errors and records.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for n := limit; n >= 0 && n > limit-utf8.UTFMax; n-- {
		if utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
	return s[:limit] // not UTF-8
}
