package containerd

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestWithoutURL checks that the error of a request has the host and not the URL.
func TestWithoutURL(t *testing.T) {
	err := withoutURL(errors.Join(
		&url.Error{Op: "Get", URL: "https://user:pass@cdn.test:8443/blob?token=hunter2", Err: errors.New("refused")},
		errors.New(`unexpected status from HEAD request to https://store.test?sig=hunter2#x: 500`)))
	for _, secret := range []string{"hunter2", "pass", "blob"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%v contains %s", err, secret)
		}
	}
	for _, part := range []string{"cdn.test:8443", "store.test", "refused", "500"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v lacks %s", err, part)
		}
	}
}

// TestParse checks which references Pull accepts, and that the errors for others state the
// problem.
func TestParse(t *testing.T) {
	g, err := ParseRegistries([]string{"registry.test:5000"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("0a", 32)
	for ref, want := range map[string]string{ // part of the error; "" = none
		"registry.test:5000/a/b@" + digest: "", "registry.test:5000/a/b:v1@" + digest: "", "registry.test:5000/a/b:v1": "",
		"registry.test:5000": "HOST/NAME@sha256:DIGEST nor HOST/NAME:TAG", "registry.test:5000/": "HOST/NAME@sha256:DIGEST nor HOST/NAME:TAG",
		"registry.test:5000/a@sha256:0a": "has no digest after the @", "registry.test:5000/a@": "has no digest after the @",
		"other.test/a@" + digest: "add it to session-runner.registries",
	} {
		host, got, err := g.parse(ref)
		if want != "" {
			if !errors.Is(err, ErrReference) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", ref, err, want)
			}
		} else if pinned := strings.Contains(ref, "@"); err != nil || host != "registry.test:5000" || (got == digest) != pinned {
			t.Errorf("%s: %s %s %v", ref, host, got, err)
		}
	}
}

// endless is a fetcher whose blobs do not end.
type endless struct{}

func (endless) Fetch(context.Context, v1.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(zeros{}), nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// TestExact checks that at most one byte more than the announced size of a blob is
// read.
func TestExact(t *testing.T) {
	r, err := exact{endless{}}.Fetch(t.Context(), v1.Descriptor{Size: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); n != 1001 || err != nil {
		t.Error(n, err)
	}
}

// TestParseReference checks the digests of valid references, and the errors for references
// without a valid tag or digest, for another registry, and if there are no registries.
func TestParseReference(t *testing.T) {
	g, err := ParseRegistries([]string{"images.test:5000"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	for ref, want := range map[string]string{"images.test:5000/a/b@" + digest: digest, "images.test:5000/a:v1@" + digest: digest, "images.test:5000/a/b:v1.2": ""} {
		if host, got, err := g.parse(ref); err != nil || host != "images.test:5000" || got != want {
			t.Errorf("%s: %s %s %v", ref, host, got, err)
		}
	}
	for ref, want := range map[string]string{"a": "HOST/NAME", "images.test:5000/": "HOST/NAME", "images.test:5000/a@": "HOST/NAME", "images.test:5000/a@sha256:1": "HOST/NAME", "images.test:5000/a:": "neither", "images.test:5000/a": "neither a digest nor a tag", "images.test:5000/a:b/c": "neither", "other.test/a:v1": "not one of the registries"} {
		if _, _, err := g.parse(ref); !errors.Is(err, ErrReference) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
	}
	if _, _, err := (*Registries)(nil).parse("images.test/a:v1"); !errors.Is(err, ErrReference) {
		t.Error(err)
	}
}
