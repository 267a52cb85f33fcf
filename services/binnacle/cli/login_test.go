package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
)

// login stores a context whose access token expires after left, and returns the path of the
// file of contexts.
func login(t *testing.T, addr string, left time.Duration) (path string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("HOME", dir)
	path, err := contexts.Path()
	if err != nil {
		t.Fatal(err)
	}
	err = contexts.Change(path, func(s *contexts.Store) error {
		return s.Put("prod", contexts.Context{Addr: addr, Token: "t0", Refresh: "r0", Expires: time.Now().Add(left)})
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRenew shows that the error about a failed renewal of a login contains the advice to log in
// again only if the mesh has refused the refresh token, and that the access token is used until it
// expires if the mesh cannot renew it now.
func TestRenew(t *testing.T) {
	const again = "log in again"
	for name, c := range map[string]struct {
		status     int // 0: the mesh closes the connection
		body       string
		left       time.Duration
		token      string // the resulting token; empty: an error
		code       int
		want, lack string
	}{
		"renewed":                 {200, `{"access_token":"t1","refresh_token":"r1","expires_in":600}`, -time.Second, "t1", exitOK, "", ""},
		"refused":                 {400, `{"error":"invalid_grant","error_description":"the login has ended"}`, -time.Second, "", exitAuth, again, ""},
		"refused early":           {400, `{"error":"invalid_grant","error_description":"the login has ended"}`, 10 * time.Second, "", exitAuth, again, ""},
		"unavailable":             {503, `{"error":"temporarily_unavailable","error_description":"the ledger does not respond now"}`, -time.Second, "", exitFailed, "ledger does not respond", again},
		"unavailable early":       {503, `{"error":"temporarily_unavailable","error_description":"x"}`, 10 * time.Second, "t0", exitOK, "", ""},
		"no outcome":              {504, `{"error":"server_error","error_description":"no outcome yet"}`, -time.Second, "", exitFailed, "no outcome yet", again},
		"limited":                 {429, `{"error":"temporarily_unavailable","error_description":"too many"}`, -time.Second, "", exitFailed, "too many", again},
		"a proxy's page":          {502, `<html>`, -time.Second, "", exitFailed, "502", again},
		"no connection":           {0, "", -time.Second, "", exitNoMesh, "no mesh responds", again},
		"no connection but valid": {0, "", 10 * time.Second, "t0", exitOK, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.status == 0 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer s.Close()
			path := login(t, s.URL, c.left)
			got, err := (&env{}).bearer()
			code := exitOK
			if err != nil {
				code = (&env{errOut: &strings.Builder{}}).end(err)
			}
			if got != c.token || code != c.code || err != nil && (!strings.Contains(err.Error(), c.want) || c.lack != "" && strings.Contains(err.Error(), c.lack)) {
				t.Errorf("%q, exit code %d: %v", got, code, err)
			}
			st, err := contexts.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if x := st.Contexts["prod"]; x.Refresh == "" || (x.Refresh == "r1") != (c.token == "t1") {
				t.Errorf("the refresh token that is stored is %q", x.Refresh)
			}
		})
	}
}

// TestMoved shows that a context whose address is changed loses its login, so that the
// refresh token is never sent to another address.
func TestMoved(t *testing.T) {
	path := login(t, "http://127.0.0.1:1", -time.Second)
	if code, _, errOut := invoke(t, "context", "set", "prod", "--addr", "http://127.0.0.1:2"); code != exitOK {
		t.Fatal(errOut)
	}
	s, err := contexts.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if x := s.Contexts["prod"]; x != (contexts.Context{Addr: "http://127.0.0.1:2"}) {
		t.Errorf("%+v", x)
	}
	c := &env{target: &target{addr: "http://127.0.0.1:1"}}
	if err := renew(c, "prod", &contexts.Context{Addr: "http://127.0.0.1:2", Refresh: "r0"}); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf("renewed at another address: %v", err)
	}
}

// TestPiped shows that no value from a pipe is cut off: login rejects a password of more than
// maxHidden bytes, and secret put sends the whole of a value of at least maxHidden bytes, except
// one newline at its end.
func TestPiped(t *testing.T) {
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		var doc struct{ Value string }
		if json.NewDecoder(r.Body).Decode(&doc) == nil {
			got = append(got, doc.Value)
		} else {
			got = append(got, r.PostForm.Get("password"))
		}
		_ = json.NewEncoder(w).Encode(gateway.TokenResponse{Access: "t1", Refresh: "r1", Expires: 600})
	}))
	defer s.Close()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	long := strings.Repeat("x", maxHidden)
	if code, _, errOut := invokeWith(t, long+"y", "login", "--user", "ann", "--addr", s.URL); code != exitUsage || len(got) > 0 || !strings.Contains(errOut, "65536 bytes") {
		t.Errorf("exit code %d, %d requests: %s", code, len(got), errOut)
	}
	if code, _, errOut := invokeWith(t, "pass word", "login", "--user", "ann", "--addr", s.URL); code != exitOK || len(got) == 0 || got[0] != "pass word" {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	for in, want := range map[string]int{long: len(long), long + "\n": len(long), long + "\n\n": len(long) + 1, long + "\nrest": len(long) + 1} {
		got = nil
		invokeWith(t, in, "secret", "put", "k", "--addr", s.URL, "--token", "t")
		if len(got) != 1 || len(got[0]) < want || want == len(long) && got[0] != long {
			t.Errorf("%d bytes were sent as %d values, want %d bytes", len(in), len(got), want)
		}
	}
}
