package resources

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// parts is a response of one frame.
type parts struct{ data []byte }

func (p *parts) Next(context.Context) (transient.Frame, error) {
	data := p.data
	if p.data = nil; data == nil {
		return transient.Frame{}, transient.ErrEnd
	}
	return transient.Frame{Kind: transient.Data, Data: data}, nil
}

func (*parts) Close() {}

// TestEvidence checks that a pack is the content of its resource, that the content of a large one
// names the path of the pack, and that a tenant reads a limited number at once.
func TestEvidence(t *testing.T) {
	var pack []byte
	r := &Reader{Packs: &fair.Places{N: 2}, Queries: queries.New(&rpc.Client{Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{Name: "audit-1"}, nil },
		Send: func(context.Context, string, string, string, any) (rpc.Frames, error) {
			var b bytes.Buffer
			w := s2.NewWriter(&b)
			_, err := w.Write(pack)
			_ = w.Close()
			return &parts{b.Bytes()}, err
		}})}
	who := &auth.Caller{Tenant: "t"}
	pack = []byte("pack")
	if c, err := r.evidence(t.Context(), who, "s-1"); err != nil || string(c.Data) != "pack" || c.MediaType != "application/x-tar" || c.Text() {
		t.Errorf("%+v, %v", c, err)
	}
	pack = make([]byte, MaxInline+1)
	if _, err := io.ReadFull(rand.Reader, pack); err != nil {
		t.Fatal(err)
	}
	if c, err := r.evidence(t.Context(), who, "s-1"); err != nil || c.MediaType != LinkType || !strings.Contains(string(c.Data), "/api/v1/sessions/s-1/evidence") {
		t.Errorf("%+v, %v", c, err)
	}
	leave, ok := r.Packs.Take("t")
	if !ok {
		t.Fatal("no place")
	}
	if _, err := r.evidence(t.Context(), who, "s-1"); err == nil {
		t.Error("more packs than the tenant's places are read")
	}
	leave()
}

// TestPoll checks that a change of a session is reported once, and that earlier changes and those
// of another session are not.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log memlog.Log
		put := func(session string) {
			if _, err := log.Append(t.Context(), "evt.t.policy.-.effect_recorded."+session, session+time.Now().String(), []byte("{}")); err != nil {
				t.Error(err)
			}
		}
		put("s-1")
		changes := 0
		ctx, end := context.WithCancel(t.Context())
		go (&Reader{Ledger: &log}).poll(ctx, bus.Filter{Tenant: "t", Event: "effect_recorded", Key: "s-1"}.String(), 1, func() { changes++ })
		for i, session := range []string{"", "s-2", "s-1", ""} {
			if session != "" {
				put(session)
			}
			time.Sleep(2 * followEvery)
			synctest.Wait()
			if want := max(0, i-1); i < 3 && changes != want || i == 3 && changes != 1 {
				t.Errorf("%d changes after %d", changes, i)
			}
		}
		end()
	})
}
