package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestGovernedWaits shows that a command whose call needs an approval prints that it waits for
// it, and repeats the request with the same idempotency key and body, and that a command whose
// call takes long does so without a message about an approval.
func TestGovernedWaits(t *testing.T) {
	alone(t)
	const waits = "call c-9 waits for approval"
	for _, x := range []struct {
		what, first, second string
		code                int
		out                 string
		mentions            bool // whether standard error says that the command waits for an approval
	}{
		{"granted", `{"status":"pending_approval","call_id":"c-9"}`, `{"output":{"done":1}}`, exitOK, `"done"`, true},
		{"still waiting", `{"status":"pending_approval","call_id":"c-9"}`, `{"status":"pending_approval","call_id":"c-9"}`, exitPending, "", true},
		{"long", `{"status":"proposed","call_id":"c-9"}`, `{"output":{"done":1}}`, exitOK, `"done"`, false},
	} {
		var seen []string
		requested := make(chan struct{}, 1)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			seen = append(seen, fmt.Sprint(r.Header.Get("Idempotency-Key"), string(body)))
			if (r.Header.Get("Prefer") != "") != (len(seen) == 1) {
				t.Errorf("%s: request %d prefers %q", x.what, len(seen), r.Header.Get("Prefer"))
			}
			if len(seen) == 1 {
				w.WriteHeader(http.StatusAccepted)
				_, _ = io.WriteString(w, x.first)
				return
			}
			requested <- struct{}{}
			_, _ = io.WriteString(w, x.second)
		}))
		code, out, errOut := invokeWith(t, "v", "unfreeze", "--reason", "x", "--addr", strings.TrimPrefix(srv.URL, "http://"), "--token", "good")
		srv.Close()
		<-requested
		if code != x.code || !strings.Contains(out, x.out) || strings.Contains(errOut, waits+"; `binnacle approvals list` shows it; waiting") != x.mentions {
			t.Errorf("%s: %d %q %q", x.what, code, out, errOut)
		}
		if len(seen) != 2 || seen[0] != seen[1] || !strings.HasPrefix(seen[0], "cli-") {
			t.Errorf("%s: the requests differ: %q", x.what, seen)
		}
	}
}

// TestImagesWait shows that commands for images wait ten minutes for the outcome.
func TestImagesWait(t *testing.T) {
	alone(t)
	var seconds []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seconds = append(seconds, r.Header.Get("X-Binnacle-Timeout"))
		_, _ = io.WriteString(w, `{"output":{"images":[]}}`)
	}))
	defer srv.Close()
	if code, out, errOut := invokeWith(t, "v", "image", "import", "x.oci.tar", "--addr", strings.TrimPrefix(srv.URL, "http://"), "--token", "good"); code != exitOK {
		t.Errorf("%d %q %q", code, out, errOut)
	}
	if strings.Join(seconds, " ") != "600" {
		t.Errorf("the requests name the seconds %q", seconds)
	}
}
