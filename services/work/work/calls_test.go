package work

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// applied is a log whose events are applied to the view of a service as they are appended.
type applied struct {
	eventlog.Log
	to *Service
}

func (l *applied) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	seq, err := l.Log.Append(ctx, subject, id, data)
	if err == nil {
		err = l.to.apply(eventlog.Entry{Seq: seq, Subject: subject, Data: data})
	}
	return seq, err
}

func (l *applied) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	seq, err := l.Log.AppendExpect(ctx, subject, id, data, filter, expect)
	if err == nil {
		err = l.to.apply(eventlog.Entry{Seq: seq, Subject: subject, Data: data})
	}
	return seq, err
}

// TestPutAgain checks that a call artifact.put with content that runs again after a crash,
// before or after it recorded the artifact, has one upload, which counts once in the quota;
// that another call has another one; and that no call may claim the upload of a call's
// content.
func TestPutAgain(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{(*Service)(nil).Declaration()})
	conn := b.Connect(t, services.Work)
	log := &applied{Log: &memlog.Log{}}
	s := &Service{Config: Config{Quota: 20}, env: &run.Env{Cell: &run.Cell{}, Conn: conn, Log: slog.New(slog.DiscardHandler), Emit: &emit.Emitter{Log: log, Source: services.Work + "/work-1", Now: time.Now}}, store: artifact.Sealed{Collected: artifact.Stream{Conn: conn}}}
	log.to = s
	s.follower = follow.New(conn, services.Work+"-1", artifactsReader, func(eventlog.Entry) error { return nil })
	following(t, s)
	put := func(call, args string) execute.Result {
		return s.handle(t.Context(), &execute.Work{Call: &contract.Call{ID: call, Kind: kindPut}, Args: []byte(args),
			Event: &contract.Event{ID: "s-" + call, Tenant: "t", Session: "s-1", CallID: call, Actor: "ann", Client: "-", Origin: "gw1"}})
	}
	const content = `{"content":"0123456789","name":"n"}`
	// The first run of c-1 ended after it stored the content and before it recorded it.
	if _, err := artifact.WriteAs(t.Context(), s.store, "t", services.Work, artifact.InlineUpload("t", "s-1", "c-1", ""), 0, strings.NewReader("0123456789")); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		call    string
		used    int64
		uploads int
	}{{"c-1", 10, 1}, {"c-1", 10, 1}, {"c-2", 20, 2}, {"c-2", 20, 2}, {"c-1", 20, 2}} {
		if res := put(x.call, content); res.ErrorCode != "" || !strings.Contains(string(res.Output), `"size":10`) {
			t.Errorf("%s: %+v", x.call, res)
		}
		begun, _, err := bus.Page(t.Context(), conn, bus.Artifacts, bus.ArtifactSubject("*.*.*.0"), 0)
		if used := s.view.Used("t", math.MaxUint64); used != x.used || len(begun) != x.uploads || err != nil {
			t.Errorf("%s: %d bytes used, %d uploads, %v", x.call, used, len(begun), err)
		}
	}
	const empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	claim := `{"name":"n","upload":"` + artifact.InlineUpload("t", "s-1", "c-3", "") + `","digest":"` + empty + `","index":"` + empty + `","size":0}`
	if res := put("c-4", claim); res.ErrorCode != contract.CodeInvalidInput || !strings.Contains(res.ErrorMessage, "/upload") {
		t.Errorf("the upload of another call's content is claimed: %+v", res)
	}
}
