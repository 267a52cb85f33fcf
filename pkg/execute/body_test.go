package execute

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestBodyStoredFirst shows that a handler receives a body that this process stored. If storing
// the body failed, the call is recorded as failed: the handler neither receives the body from
// memory nor waits forever.
func TestBodyStoredFirst(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{{Service: "judge", Slots: 1}})
	for _, stores := range []bool{true, false} {
		tt := newTenantsTest(t)
		tt.x.Blobs = &blob.Store{Conn: b.Connect(t, "judge"), Recent: blob.NewRecent()}
		content := strings.Repeat("request ", 10_000)
		body, object := blob.Refer([]byte(content), "text/plain")
		ctx, cancel := context.WithCancel(t.Context())
		if !stores {
			cancel() // as if the process had lost the server
		}
		if err := tt.x.Blobs.In("works").Put(ctx, &body, object); (err == nil) != stores {
			t.Fatal(err)
		}
		cancel()
		received := false
		tt.x.Handler = func(ctx context.Context, w *Work) Result {
			got, err := w.Body(ctx)
			if err != nil {
				if !errors.Is(err, contract.ErrErased) && !errors.Is(err, blob.ErrRead) && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				return Fail(contract.CodeArgsUnavailable, "the request cannot be read: %v", err)
			}
			received = string(got) == content
			return Result{Status: contract.Succeeded}
		}
		d, m := tt.deliverBody("works", 1, &body)
		tt.x.Process(t.Context(), d)
		status, code := tt.outcome("works")
		want, wantCode := contract.Succeeded, ""
		if !stores {
			want, wantCode = contract.Failed, contract.CodeArgsUnavailable
		}
		if m.Settled != "ack" || received != stores || status != want || code != wantCode {
			t.Errorf("stored %v: settled by %q, received %v, recorded %q %q", stores, m.Settled, received, status, code)
		}
	}
}
