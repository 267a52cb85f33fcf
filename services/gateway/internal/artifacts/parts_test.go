package artifacts

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// TestLinks checks that parse returns a link that a gateway signed, until the link expires, and
// errLink for other texts.
func TestLinks(t *testing.T) {
	own, err := sign.NewKey(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	other, err := sign.NewKey(bytes.Repeat([]byte{2}, 32))
	if err != nil {
		t.Fatal(err)
	}
	key := func(kid string) ([]byte, error) {
		if kid != own.KID {
			return nil, errors.New("not a gateway's key")
		}
		return own.Public(), nil
	}
	end := time.Date(2026, 11, 28, 1, 0, 0, 0, time.UTC)
	l := link{Artifact: "ar-1", CallID: "c-1", Expires: contract.Time(end), KID: own.KID, Owner: "ann", Tenant: "t", Upload: "u-1"}
	text := l.text(own)
	if got, err := parse(text, end.Add(-time.Millisecond), key); err != nil || *got != l {
		t.Errorf("%+v, %v", got, err)
	}
	first, second, _ := strings.Cut(text, ".")
	encode := base64.RawURLEncoding.EncodeToString
	changed := func(f func(*link)) string { x := l; f(&x); return encode(contract.Bytes(&x)) + "." + second }
	unsigned := func(f func(*link)) string { x := l; f(&x); return x.text(own) }
	for what, bad := range map[string]string{
		"another artifact": changed(func(l *link) { l.Artifact = "ar-2" }), "another tenant": changed(func(l *link) { l.Tenant = "u" }), "a later end": changed(func(l *link) { l.Expires = contract.Time(end.Add(time.Hour)) }),
		"another key": l.text(other), "the id of another key": unsigned(func(l *link) { l.KID = other.KID }),
		"no time": unsigned(func(l *link) { l.Expires = "" }), "no valid time": unsigned(func(l *link) { l.Expires = "tomorrow" }),
		"no signature": first, "an empty signature": first + ".", "another signature": first + "." + encode([]byte(own.Sign(sign.DomainReceipt, contract.Bytes(&l)))),
		"padded": first + "==." + second, "no base64": "*." + second, "no base64 in the signature": first + ".*", "a third part": text + ".x",
		"no document": encode([]byte("{}")) + "." + encode([]byte(own.Sign(sign.DomainLink, []byte("{}")))), "": "",
	} {
		if got, err := parse(bad, end.Add(-time.Millisecond), key); got != nil || !errors.Is(err, errLink) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	for _, late := range []time.Time{end, end.Add(time.Hour)} {
		if got, err := parse(text, late, key); got != nil || !errors.Is(err, errLink) {
			t.Errorf("at %v: %+v, %v", late, got, err)
		}
	}
}

// request returns the context of a request and the recorder of its response.
func request(target string, headers map[string]string, body string) (echo.Context, *httptest.ResponseRecorder) {
	r, w := httptest.NewRequest(http.MethodGet, target, strings.NewReader(body)), httptest.NewRecorder()
	for k, v := range headers {
		r.Header.Set(k, v)
	}
	return echo.New().NewContext(r, w), w
}

// status returns the status and the parameter of an API error, or 200.
func status(err error) string {
	var e *apierr.Error
	switch {
	case err == nil:
		return "200 "
	case errors.As(err, &e):
		return fmt.Sprint(e.Status, " ", e.Param)
	}
	return err.Error()
}

// TestNumber checks the bounds of numbers in queries.
func TestNumber(t *testing.T) {
	for v, want := range map[string]int64{"": 5, "2": 2, "9": 9, "1": -1, "10": -1, "x": -1, "3.0": -1, "-3": -1, "99999999999999999999": -1} {
		c, _ := request("/?n="+v, nil, "")
		got, err := number(c, "n", 2, 9, 5)
		if want >= 0 && (err != nil || got != want) || want < 0 && status(err) != "400 n" {
			t.Errorf("%q: %d, %v", v, got, err)
		}
	}
}

// TestIncoming checks that a body with a content encoding is refused, and that any other is
// read as it is.
func TestIncoming(t *testing.T) {
	for encoding, want := range map[string]string{"": "200 ", "identity": "200 ", "gzip": "415 Content-Encoding", "identity, gzip": "415 Content-Encoding"} {
		c, _ := request("/", map[string]string{"Content-Encoding": encoding}, "content")
		r, err := incoming(c)
		if status(err) != want {
			t.Errorf("%q: %v", encoding, err)
		}
		if err != nil {
			continue
		}
		if got, err := io.ReadAll(r); err != nil || string(got) != "content" {
			t.Errorf("%q: %q, %v", encoding, got, err)
		}
	}
}

// TestUploadError checks the errors of the API for errors of an upload.
func TestUploadError(t *testing.T) {
	for _, x := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("read: %w", errQuota), "413 " + apierr.WholeBody}, {fmt.Errorf("read: %w", errLong), "408 " + apierr.WholeBody},
		{fmt.Errorf("read: %w", errIdle), "408 " + apierr.WholeBody}, {fmt.Errorf("write to bucket a: %w", context.DeadlineExceeded), "503 "}, {&net.OpError{Op: "read", Err: errors.New("reset")}, "503 "},
		{artifact.ErrTooLarge, "413 " + apierr.WholeBody}, {io.ErrUnexpectedEOF, "400 " + apierr.WholeBody}, {context.Canceled, "400 " + apierr.WholeBody}, {artifact.ErrExists, "503 "},
	} {
		if got := status(uploadError(x.err)); got != x.want {
			t.Errorf("%v: %s, want %s", x.err, got, x.want)
		}
	}
}

// stored is a store in memory.
type stored map[string][]byte

func (s stored) Put(_ context.Context, key string, part []byte) error {
	s[key] = bytes.Clone(part)
	return nil
}

func (s stored) Get(_ context.Context, key string) ([]byte, error) {
	if part, ok := s[key]; ok {
		return part, nil
	}
	return nil, artifact.ErrNotFound
}

// TestSend checks the responses with content: whole or a range, with headers that keep a
// browser from interpreting it; and the errors if the content was removed or is damaged.
func TestSend(t *testing.T) {
	parts := stored{}
	o, err := artifact.Write(t.Context(), parts, "t", "gateway", "", 0, strings.NewReader("<script>"))
	if err != nil {
		t.Fatal(err)
	}
	a := work.Artifact{Artifact: artifact.ID(o.Digest), Index: o.Index, MediaType: "text/html", Name: "a\r\n\"b.html", Service: "gateway", Size: o.Size, Stored: contract.Time(time.Now()), Upload: o.Upload}
	s := &API{Store: parts}
	for rng, want := range map[string]string{"": "200 <script>", "bytes=1-3": "206 scr"} {
		c, w := request("/", map[string]string{"Range": rng}, "")
		if err := s.send(c, "t", &a); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(w.Code, " ", w.Body); got != want {
			t.Errorf("%s: %s, want %s", rng, got, want)
		}
		for name, want := range map[string]string{"Content-Type": "text/html", "Content-Security-Policy": "sandbox; default-src 'none'", "X-Content-Type-Options": "nosniff", "Etag": `"` + a.Artifact + `"`, "Cache-Control": "private"} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s: %q", rng, name, got)
			}
		}
		if got := w.Header().Get("Content-Disposition"); !strings.HasPrefix(got, "attachment;") || strings.ContainsAny(got, "\r\n") {
			t.Errorf("%s: %q", rng, got)
		}
	}
	c, w := request("/", map[string]string{"If-None-Match": `"` + a.Artifact + `"`}, "")
	if err := s.send(c, "t", &a); err != nil || w.Code != http.StatusNotModified {
		t.Errorf("with the entity tag: %d, %v", w.Code, err)
	}
	for want, change := range map[string]func(*API, *work.Artifact){
		"404 ": func(s *API, _ *work.Artifact) { s.Store = stored{} },
		"503 ": func(s *API, _ *work.Artifact) {
			damaged := maps.Clone(parts)
			damaged["t.gateway."+o.Upload+".index-0"] = []byte("x")
			s.Store = damaged
		},
	} {
		s, a := API{Store: parts}, a
		change(&s, &a)
		c, w := request("/", nil, "")
		if err := s.send(c, "t", &a); status(err) != want || w.Body.Len() != 0 {
			t.Errorf("want %s: %v, %s", want, err, w.Body)
		}
	}
	bad := a
	bad.Stored = "yesterday"
	if c, w := request("/", nil, ""); s.send(c, "t", &bad) == nil || w.Body.Len() != 0 {
		t.Error("a time that is not one")
	}
}

// TestFindMalformed checks that a malformed id is refused before a query is sent.
func TestFindMalformed(t *testing.T) {
	for _, id := range []string{"", "ar-1", "sha256:" + strings.Repeat("0", 64)} {
		if _, err := (&API{}).find(t.Context(), "t", work.ArtifactInfoRequest{Artifact: id}); status(err) != "400 id" {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestToVerify checks the timeouts of the calls of uploads by their sizes in GiB.
func TestToVerify(t *testing.T) {
	for size, want := range map[int64]time.Duration{0: time.Minute, 1: 316 * time.Second, 10: 2620 * time.Second, 1024: verifying} {
		if got := toVerify(time.Minute, size<<30); got != want {
			t.Errorf("%d GiB: %s, want %s", size, got, want)
		}
	}
	if claimed := 23 * time.Hour; longest+verifying > claimed { // see services/work
		t.Error("the longest upload and its verification take longer than its parts are kept")
	}
}
