package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// TestCheckURL checks which URLs are fetched.
func TestCheckURL(t *testing.T) {
	for s, want := range map[string]bool{"http://a.test": true, "https://a.test:8443/x?y#z": true, "ftp://a.test": false, "file:///etc/passwd": false, "a.test": false, "//a.test": false, "http://": false, "https://u:p@a.test": false, "http://a.test/%zz": false, "": false} {
		if err := checkURL(s); (err == nil) != want {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestLinks checks that links are absolute, distinct, over HTTP and at most maxLinks.
func TestLinks(t *testing.T) {
	parse := func(page string) *html.Node {
		doc, err := html.Parse(strings.NewReader(page))
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
	base := &url.URL{Scheme: "https", Host: "a.test", Path: "/dir/page"}
	got := links(parse(`<a href="x">1</a><a href=" /y#part ">2</a><a href="/y">3</a><a href="mailto:a@b">4</a><a href="javascript:x">5</a><a name="x">6</a><link href="/z"><a href="http://b.test/">7</a>`), base)
	if want := []string{"https://a.test/dir/x", "https://a.test/y", "http://b.test/"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var many strings.Builder
	for i := range maxLinks + 5 {
		fmt.Fprintf(&many, `<a href="/%d">x</a>`, i)
	}
	if n := len(links(parse(many.String()), base)); n != maxLinks {
		t.Errorf("%d links, want %d", n, maxLinks)
	}
}

// TestFetch checks the output for responses that are and are not text, and the headers that
// a caller cannot set.
func TestFetch(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Method", r.Method+" "+r.Header.Get("X-Own"))
		w.WriteHeader(http.StatusTeapot)
		if r.URL.Path == "/bytes" {
			_, _ = w.Write([]byte{0xff, 0xfe})
			return
		}
		_, _ = w.Write([]byte("tea"))
	}))
	defer s.Close()
	out, err := Fetch(t.Context(), FetchInput{URL: s.URL, Headers: map[string]string{"X-Own": "own"}})
	if err != nil || out.Status != http.StatusTeapot || out.Body != "tea" || out.Encoding != "utf-8" || out.Headers["x-method"] != "GET own" || out.Truncated {
		t.Errorf("%+v (%v)", out, err)
	}
	out, err = Fetch(t.Context(), FetchInput{URL: s.URL + "/bytes", Method: http.MethodPost})
	if err != nil || out.Body != "//4=" || out.Encoding != "base64" || out.Headers["x-method"] != "POST" {
		t.Errorf("%+v (%v)", out, err)
	}
	for _, h := range []string{"Host", "connection", "Content-Length", "Transfer-Encoding", "Proxy-Authorization"} {
		if _, err := Fetch(t.Context(), FetchInput{URL: s.URL, Headers: map[string]string{h: "x"}}); err == nil {
			t.Errorf("the header %s is sent", h)
		}
	}
}

// TestRedirects checks that a request follows maxHops redirects, and fails at the one after
// them.
func TestRedirects(t *testing.T) {
	t.Setenv("HTTP_PROXY", "")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if left, _ := strconv.Atoi(r.URL.Path[1:]); left > 0 {
			http.Redirect(w, r, fmt.Sprintf("/%d", left-1), http.StatusFound)
		}
	}))
	defer s.Close()
	if out, err := Fetch(t.Context(), FetchInput{URL: fmt.Sprintf("%s/%d", s.URL, maxHops)}); err != nil || out.Status != http.StatusOK {
		t.Errorf("%d redirects: %+v (%v)", maxHops, out, err)
	}
	if out, err := Fetch(t.Context(), FetchInput{URL: fmt.Sprintf("%s/%d", s.URL, maxHops+1)}); err == nil || !strings.Contains(err.Error(), "more than 10 redirects") {
		t.Errorf("%d redirects: %+v (%v)", maxHops+1, out, err)
	}
}
