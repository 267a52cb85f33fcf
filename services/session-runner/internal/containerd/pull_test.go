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
