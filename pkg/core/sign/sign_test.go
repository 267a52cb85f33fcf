package sign

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func seed(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRFC8032 checks the test vectors 1 to 3 of RFC 8032 section 7.1.
func TestRFC8032(t *testing.T) {
	for _, c := range []struct{ seed, public, msg, sig string }{
		{"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
			"e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"},
		{"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
			"92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"},
		{"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7", "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
			"6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"},
	} {
		k, err := NewKey(seed(t, c.seed))
		if err != nil {
			t.Fatal(err)
		}
		msg := seed(t, c.msg)
		if got := hex.EncodeToString(k.Public()); got != c.public {
			t.Errorf("public key %s, want %s", got, c.public)
		}
		if got := hex.EncodeToString(k.Raw(msg)); got != c.sig {
			t.Errorf("signature %s, want %s", got, c.sig)
		}
		if err := VerifyRaw(k.Public(), msg, seed(t, c.sig)); err != nil {
			t.Error(err)
		}
		if err := VerifyRaw(k.Public(), append(msg, 0), seed(t, c.sig)); !errors.Is(err, ErrSignature) {
			t.Error("another message:", err)
		}
	}
}

// TestPreimage shows that a signature covers the domain line and the body, and that it
// does not verify with another domain or body, or if the domain line is moved into the
// body.
func TestPreimage(t *testing.T) {
	k, err := NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	sig := k.Sign(DomainReceipt, []byte("{}"))
	if raw, _ := base64.StdEncoding.DecodeString(sig); !ed25519.Verify(k.Public(), []byte("binnacle receipt v1\n{}"), raw) {
		t.Fatal("the preimage is not domain, newline, body")
	}
	for _, c := range []struct {
		domain, body string
		ok           bool
	}{
		{DomainReceipt, "{}", true},
		{DomainDecision, "{}", false},
		{DomainReceipt, "{ }", false},
		{DomainReceipt + "\n", "{}", false},
		{"", DomainReceipt + "\n{}", false},
	} {
		if err := Verify(k.Public(), c.domain, []byte(c.body), sig); (err == nil) != c.ok || !c.ok && !errors.Is(err, ErrSignature) {
			t.Errorf("%q %q: %v", c.domain, c.body, err)
		}
	}
}

// TestMalformed shows that malformed seeds, public keys and signatures cause errors and
// no panic.
func TestMalformed(t *testing.T) {
	for _, n := range []int{0, 31, 33, 64} {
		if _, err := NewKey(make([]byte, n)); err == nil || !strings.Contains(err.Error(), "want 32") {
			t.Errorf("seed of %d bytes: %v", n, err)
		}
	}
	k, _ := NewKey(make([]byte, 32))
	sig := k.Sign("d", nil)
	for _, public := range [][]byte{nil, k.Public()[:31], append(k.Public(), 0)} {
		if err := Verify(public, "d", nil, sig); err == nil || errors.Is(err, ErrSignature) {
			t.Errorf("Verify with a key of %d bytes: %v", len(public), err)
		}
		if err := VerifyRaw(public, nil, k.Raw(nil)); !errors.Is(err, ErrSignature) {
			t.Errorf("VerifyRaw with a key of %d bytes: %v", len(public), err)
		}
	}
	for _, s := range []string{"", "AAAA", strings.TrimRight(sig, "="), sig[:40] + "\n" + sig[40:], sig + "=", "!" + sig[1:]} {
		if err := Verify(k.Public(), "d", nil, s); !errors.Is(err, ErrSignature) {
			t.Errorf("signature %q: %v", s, err)
		}
	}
}

// TestBase64 shows that Base64 decodes canonical encodings, and rejects other forms,
// such as encodings without padding or with a line break.
func TestBase64(t *testing.T) {
	for s, want := range map[string]string{"": "", "YQ==": "a", "YWI=": "ab", "YWJj": "abc", "+/8=": "\xfb\xff"} {
		if got, err := Base64(s); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"YQ", "YQ=", "YR==", "YWJ=", "YW\nJj", "YWJj\r\n", "-_8=", " YWJj", "YWJj="} {
		if got, err := Base64(s); err == nil {
			t.Errorf("%q is read as %q", s, got)
		}
	}
}

// TestNames checks the form of digests and key ids, and that the domains are
// distinct lines.
func TestNames(t *testing.T) {
	if got := Digest([]byte("abc")); got != "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Error(got)
	}
	k, _ := NewKey(make([]byte, 32))
	// The key id is "k-" and 16 bytes of the public key's SHA-256.
	want := "k-" + strings.TrimPrefix(Digest(k.Public()), "sha256:")[:32]
	if k.KID != want || KID(k.Public()) != want {
		t.Errorf("%s, want %s", k.KID, want)
	}
	seen := map[string]bool{}
	for _, d := range []string{DomainApproval, DomainCell, DomainDecision, DomainEpoch, DomainExport, DomainLink, DomainOperator, DomainPack, DomainReceipt, DomainTrust, DomainPasskey, DomainP0, DomainManifest, DomainSnapshot} {
		if seen[d] || strings.Contains(d, "\n") {
			t.Errorf("domain %q is used twice or is not one line", d)
		}
		seen[d] = true
	}
}
