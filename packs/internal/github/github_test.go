package github

import (
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// TestFailure checks the errors for several statuses of a response, and after which time
// a call may be repeated.
func TestFailure(t *testing.T) {
	for _, c := range []struct {
		status int
		header http.Header
		code   string
		again  int64
	}{
		{401, nil, pack.CredentialInvalid, 0}, {403, nil, pack.CredentialInvalid, 0}, {403, http.Header{"X-Ratelimit-Remaining": {"1"}}, pack.CredentialInvalid, 0},
		{403, http.Header{"X-Ratelimit-Remaining": {"0"}, "Retry-After": {"7"}}, pack.HandlerFailed, 7000}, {429, nil, pack.HandlerFailed, 60_000}, {429, http.Header{"X-Ratelimit-Reset": {"1"}}, pack.HandlerFailed, 0},
		{404, nil, pack.InvalidInput, 0}, {410, nil, pack.InvalidInput, 0}, {409, nil, pack.SchemaMismatch, 0}, {422, nil, pack.InvalidInput, 0}, {500, nil, pack.HandlerFailed, 0},
	} {
		h := c.header
		if h == nil {
			h = http.Header{}
		}
		var e *pack.Error
		if err := failure(&http.Response{StatusCode: c.status, Header: h}, []byte(`{"message":"said"}`), "o/n"); !errors.As(err, &e) || e.Code != c.code || e.RetryAfterMS != c.again {
			t.Errorf("status %d, %v: %+v", c.status, c.header, e)
		}
	}
	in := time.Now().Add(time.Minute).Unix()
	if got := retryAfter(http.Header{"X-Ratelimit-Reset": {strconv.FormatInt(in, 10)}}); got <= 50_000 || got > 60_000 {
		t.Errorf("a reset in a minute: %d ms", got)
	}
}

// TestRepo checks that no request is sent for a name that is not of the form OWNER/NAME.
func TestRepo(t *testing.T) {
	t.Setenv("GITHUB_API_URL", "http://127.0.0.1:1")
	for repo, valid := range map[string]bool{"owner/name": true, "o.w-n_r/n.a": true, "": false, "owner": false, "owner/": false, "/name": false, "a/b/c": false, "../name": false, "owner/..": false, "owner/na me": false, "owner/n?x": false} {
		var e *pack.Error
		err := (&Common{Repo: repo}).call(t.Context(), http.MethodGet, "", nil, nil)
		if refused := errors.As(err, &e) && e.Pointer == "/repo"; refused == valid || err == nil {
			t.Errorf("%q: %v", repo, err)
		}
	}
}
