package work

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// args are the arguments of the calls for artifacts.
type args struct {
	Artifact  string   `json:"artifact"`
	Base64    bool     `json:"base64"`
	Content   *string  `json:"content"`
	Digest    string   `json:"digest"`
	Index     string   `json:"index"`
	Inputs    []string `json:"inputs"`
	Label     string   `json:"label"`
	Labels    []string `json:"labels"`
	MediaType string   `json:"media_type"`
	Name      string   `json:"name"`
	RetainS   int64    `json:"retain_s"`
	Size      int64    `json:"size"`
	Upload    string   `json:"upload"`
	Limit     int      `json:"limit"`
	Offset    int64    `json:"offset"`
	Before    string   `json:"before"`
	TTL       int64    `json:"ttl_s"`
	Reason    string   `json:"reason"`
	Holder    string   `json:"holder"`
}

// handle executes a call for artifacts or memory.
func (s *Service) handle(ctx context.Context, w *execute.Work) execute.Result {
	if res, ok := handleMemory(ctx, s, w); ok {
		return res
	}
	var a args
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "arguments: %v", err)
	}
	do := map[string]func(context.Context, *execute.Work, *args) execute.Result{
		kindPut: s.put, kindGet: s.get, kindInfo: s.info, kindList: s.list, kindLink: s.link, kindHold: s.hold, kindRelease: s.release, kindDelete: s.remove,
	}[w.Call.Kind]
	if do == nil {
		return execute.Fail(contract.CodeInvalidInput, "%s is not a call for artifacts", w.Call.Kind)
	}
	return do(ctx, w, &a)
}

// output returns the result with v, in canonical JSON, as its output.
func output(v any) execute.Result {
	raw, err := json.Marshal(v)
	if err == nil {
		raw, err = canon.Transform(nil, raw)
	}
	if err != nil {
		return execute.Fail(contract.CodeInternal, "the output cannot be encoded: %v", err)
	}
	return execute.Result{EffectType: "artifact", Output: raw}
}

// failed returns the result for an error.
func failed(err error) execute.Result {
	for _, x := range []struct {
		is   error
		code string
	}{
		{shelf.ErrNotFound, contract.CodeNotFound}, {shelf.ErrHeld, contract.CodeArtifactHeld}, {shelf.ErrCited, contract.CodeArtifactHeld}, {shelf.ErrNotHeld, contract.CodeNotFound}, {shelf.ErrTaken, contract.CodeConflict},
		{artifact.ErrNotFound, contract.CodeNotFound}, {artifact.ErrCorrupt, contract.CodeArtifactFailed}, {artifact.ErrTooLarge, contract.CodeResourceExhausted}, {artifact.ErrFull, contract.CodeResourceExhausted}, {contract.ErrErased, contract.CodeContentErased},
	} {
		if errors.Is(err, x.is) {
			return execute.Fail(x.code, "%v", err)
		}
	}
	return execute.Fail(contract.CodeArtifactFailed, "%v", err)
}

// put executes artifact.put. The upload is verified before the artifact is recorded. If the
// call runs again, put returns the result of the upload that it has recorded.
func (s *Service) put(ctx context.Context, w *execute.Work, a *args) execute.Result {
	u, err := recorded(ctx, s, w, cmp.Or(a.Upload, inlineUpload(w)))
	if err != nil {
		return failed(err)
	}
	if u != nil {
		return stored(ctx, s, w, u)
	}
	o, res := s.object(ctx, w, a)
	if res.ErrorCode != "" {
		return res
	}
	d := artifact.Stored{Actor: w.Event.Actor, Artifact: artifact.ID(o.Digest), CallID: w.Call.ID, Index: o.Index, Inputs: a.Inputs, Kind: w.Call.Kind, Labels: slices.Compact(slices.Sorted(slices.Values(a.Labels))), MediaType: a.MediaType, Name: a.Name,
		RetainMS: a.RetainS * 1000, Service: o.Service, Session: w.Event.Session, Size: o.Size, Upload: o.Upload}
	if err := lineage(ctx, s, w, a.Inputs); err != nil {
		return failed(err)
	}
	if err := appended(ctx, s, s.env.Emit.New(contract.EventArtifactStored, d.Artifact, contract.Bytes(&d), w.Event)); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the artifact cannot be recorded: %v", err)
	}
	u, err = recorded(ctx, s, w, o.Upload)
	if err != nil {
		return failed(err)
	}
	if u == nil {
		return execute.Fail(contract.CodeArtifactFailed, "the artifact was recorded and is not in the view")
	}
	return stored(ctx, s, w, u)
}

// appended appends an event. While the ledger does not respond, it repeats the append, for at most
// patience.
func appended(ctx context.Context, s *Service, e *contract.Event) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return eventlog.Retry(ctx, func() error { _, err := s.env.Emit.Append(ctx, e); return err })
}

// inlineUpload returns the id of the upload of the content in a call's arguments.
func inlineUpload(w *execute.Work) string {
	return artifact.InlineUpload(w.Event.Tenant, w.Event.Session, w.Call.ID, w.Call.KeyID())
}

// recorded returns the upload that a call has recorded; see shelf.View.Recorded.
func recorded(ctx context.Context, s *Service, w *execute.Work, upload string) (u *shelf.Upload, err error) {
	if e := s.read(ctx, func(v *shelf.View) { u, err = v.Recorded(w.Event.Tenant, upload, w.Call.ID) }); e != nil {
		return nil, e
	}
	return u, err
}

// stored returns the result of a call that recorded an upload, which is a failure if the
// upload exceeds the quota (see fits).
func stored(ctx context.Context, s *Service, w *execute.Work, u *shelf.Upload) execute.Result {
	d := &u.Data
	if u.Deleted == "" || u.Deleted == shelf.Quota {
		if res := s.fits(ctx, w, u); res.ErrorCode != "" {
			return res
		}
	}
	sum := artifact.DigestOf(d.Artifact)
	res := output(map[string]any{"artifact": d.Artifact, "digest": sum, "media_type": d.MediaType, "name": d.Name, "size": d.Size})
	res.Artifacts = []string{sum}
	return res
}

// object returns the verified object of a call artifact.put. If the result has an error
// code, the call fails with it.
func (s *Service) object(ctx context.Context, w *execute.Work, a *args) (artifact.Object, execute.Result) {
	tenant := w.Event.Tenant
	if (a.Content == nil) == (a.Upload == "") {
		return artifact.Object{}, execute.Fail(contract.CodeInvalidInput, "/content: give either content or upload")
	}
	if a.Content != nil {
		content := []byte(*a.Content)
		if a.Base64 {
			var err error
			if content, err = base64.StdEncoding.DecodeString(*a.Content); err != nil {
				return artifact.Object{}, execute.Fail(contract.CodeInvalidInput, "/content: is not standard base64")
			}
		}
		o, err := artifact.WriteAs(ctx, s.store, tenant, services.Work, inlineUpload(w), maxInline, bytes.NewReader(content))
		if err == nil {
			err = checkBegun(ctx, s, &o, s.env.Emit.Now()) // an earlier run of the call may have stored it
		}
		if err != nil {
			return o, failed(err)
		}
		return o, execute.Result{}
	}
	o := artifact.Object{Tenant: tenant, Service: services.Gateway, Upload: a.Upload, Size: a.Size, Digest: a.Digest, Index: a.Index}
	if err := o.Valid(); err != nil {
		return o, execute.Fail(contract.CodeInvalidInput, "/%v", err)
	}
	if artifact.IsInline(a.Upload) { // it is that of another call's content
		return o, execute.Fail(contract.CodeInvalidInput, "/upload: %s is not the id of an upload to the gateway", a.Upload)
	}
	if err := artifact.Verify(ctx, s.store, o); err != nil {
		return o, failed(err)
	}
	if err := checkBegun(ctx, s, &o, s.env.Emit.Now()); err != nil { // after Verify, which may take long
		return o, failed(err)
	}
	return o, execute.Result{}
}

// checkBegun returns an error if an upload is older than claimable at the time now. The
// collector might otherwise remove it before it is recorded as an artifact.
func checkBegun(ctx context.Context, s *Service, o *artifact.Object, now time.Time) error {
	if o.Size == 0 {
		return nil // it has no parts
	}
	at, err := s.store.Begun(ctx, artifact.Parts{Tenant: o.Tenant, Service: o.Service, Upload: o.Upload})
	if err == nil && now.Sub(at) > claimable {
		err = fmt.Errorf("the upload began more than %.0f hours ago: send the content again", claimable.Hours())
	}
	return err
}

// lineage returns an error if the caller may not read one of the artifacts that a new one
// was made from.
func lineage(ctx context.Context, s *Service, w *execute.Work, inputs []string) (err error) {
	if len(inputs) == 0 {
		return nil
	}
	now := s.env.Emit.Now()
	if e := s.read(ctx, func(v *shelf.View) {
		for _, id := range inputs {
			if v.Get(w.Event.Tenant, id).Of(reads(w), now) == nil {
				err = shelf.ErrNotFound
			}
		}
	}); e != nil {
		return e
	}
	return err
}

// fits deletes an upload that was just recorded and returns a failure if the artifacts of
// the tenant that were recorded up to it exceed the quota, or if it was deleted for this
// reason before. Instances that have read the same events agree. fits also returns a
// failure if the quota cannot be checked or the deletion cannot be recorded.
func (s *Service) fits(ctx context.Context, w *execute.Work, u *shelf.Upload) execute.Result {
	quota := quotaOf(s, w.Event.Tenant)
	full := execute.Fail(contract.CodeResourceExhausted, "with %d bytes more, the artifacts of tenant %s exceed its quota of %d bytes: delete some", u.Data.Size, w.Event.Tenant, quota)
	if u.Deleted == shelf.Quota {
		return full
	}
	var used int64
	if err := s.read(ctx, func(v *shelf.View) { used = v.Used(w.Event.Tenant, u.Seq) }); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the quota of the tenant cannot be read: %v", err)
	}
	if used <= quota {
		return execute.Result{}
	}
	if err := s.delete(ctx, w.Event.Tenant, u.Data.Artifact, u.Data.Upload, w.Call.ID, shelf.Quota, w.Event); err != nil {
		return failed(err)
	}
	return full
}

// quotaOf returns the maximum number of bytes of a tenant's artifacts: that of the tenant's
// quota, or the configured one.
func quotaOf(s *Service, tenant string) int64 {
	return cmp.Or(s.env.Cell.Quota(tenant).ArtifactBytes, s.Quota)
}

// reads returns the owner whose artifacts a call may read: the caller or, with audit:read, "",
// which means every owner.
func reads(w *execute.Work) string {
	if slices.Contains(w.Call.Scopes, "audit:read") {
		return ""
	}
	return w.Event.Actor
}

// find returns a copy of an artifact and its newest upload that the caller may read, or
// shelf.ErrNotFound.
func (s *Service) find(ctx context.Context, w *execute.Work, id string) (a *shelf.Artifact, u *shelf.Upload, err error) {
	now := s.env.Emit.Now()
	if err := s.read(ctx, func(v *shelf.View) {
		a = v.Get(w.Event.Tenant, id).Clone()
		u = a.Of(reads(w), now)
	}); err != nil {
		return nil, nil, err
	}
	if u == nil {
		return nil, nil, shelf.ErrNotFound
	}
	return a, u, nil
}

// describe returns the description of an upload.
func describe(a *shelf.Artifact, u *shelf.Upload) events.Artifact {
	d := &u.Data
	out := events.Artifact{Artifact: d.Artifact, CallID: d.CallID, Cited: a.Cited, Held: len(a.Holds) > 0, Index: d.Index, Inputs: d.Inputs, Kind: d.Kind, Labels: d.Labels, MediaType: d.MediaType, Name: d.Name,
		Owner: d.Actor, Service: d.Service, Session: d.Session, Size: d.Size, Stored: contract.Time(u.At), Upload: d.Upload}
	if out.Inputs == nil {
		out.Inputs = []string{}
	}
	if out.Labels == nil {
		out.Labels = []string{}
	}
	if end := u.Expires(); !end.IsZero() {
		out.Expires = contract.Time(end)
	}
	return out
}

// info executes artifact.info.
func (s *Service) info(ctx context.Context, w *execute.Work, a *args) execute.Result {
	x, u, err := s.find(ctx, w, a.Artifact)
	if err != nil {
		return failed(err)
	}
	return output(describe(x, u))
}

// list executes artifact.list.
func (s *Service) list(ctx context.Context, w *execute.Work, a *args) execute.Result {
	all, err := s.listed(ctx, w.Event.Tenant, w.Event.Actor, a.Before, a.Label, a.Limit)
	if errors.Is(err, shelf.ErrNotFound) {
		return execute.Fail(contract.CodeInvalidInput, "/before: %s is not the id of an upload of the caller", a.Before)
	}
	if err != nil {
		return failed(err)
	}
	return output(map[string]any{"artifacts": all})
}

// listed returns descriptions of the artifacts of a tenant and owner; see shelf.View.List.
func (s *Service) listed(ctx context.Context, tenant, owner, before, label string, limit int) ([]events.Artifact, error) {
	out, now := []events.Artifact{}, s.env.Emit.Now()
	var found error
	err := s.read(ctx, func(v *shelf.View) {
		var all []shelf.Entry
		all, found = v.List(tenant, owner, now, before, label, limit)
		for _, e := range all {
			out = append(out, describe(e.Artifact, e.Upload))
		}
	})
	return out, errors.Join(err, found)
}

// get executes artifact.get.
func (s *Service) get(ctx context.Context, w *execute.Work, a *args) execute.Result {
	_, u, err := s.find(ctx, w, a.Artifact)
	if err != nil {
		return failed(err)
	}
	if key := artifact.KeyOf(u.Data.Upload); !contentkeys.Covers(w.Call.KeyID(), key) {
		return execute.Fail(contract.CodeInvalidInput, "/artifact: %v", contentkeys.ErrOtherSubject)
	}
	r, err := artifact.Open(ctx, s.store, u.Object(w.Event.Tenant))
	if err != nil {
		return failed(err)
	}
	defer r.Close()
	if _, err := r.Seek(a.Offset, io.SeekStart); err != nil {
		return failed(err)
	}
	part, err := io.ReadAll(io.LimitReader(r, int64(min(a.Limit, maxPart))))
	if err != nil {
		return failed(err)
	}
	out := map[string]any{"artifact": a.Artifact, "media_type": u.Data.MediaType, "name": u.Data.Name, "offset": a.Offset, "size": u.Data.Size}
	if utf8.Valid(part) {
		out["text"] = string(part)
	} else {
		out["base64"] = part
	}
	return output(out)
}

// link executes artifact.link.
func (s *Service) link(ctx context.Context, w *execute.Work, a *args) execute.Result {
	_, u, err := s.find(ctx, w, a.Artifact)
	if err != nil {
		return failed(err)
	}
	d := events.ArtifactLinked{Artifact: a.Artifact, CallID: w.Call.ID, Expires: contract.Time(s.env.Emit.Now().Add(time.Duration(a.TTL) * time.Second))}
	if err := appended(ctx, s, s.env.Emit.New(contract.EventArtifactLinked, a.Artifact, contract.Bytes(&d), w.Event)); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the link cannot be recorded: %v", err)
	}
	return output(map[string]any{"artifact": a.Artifact, "expires": d.Expires, "owner": u.Data.Actor, "upload": u.Data.Upload})
}

// change appends the event that decide returns for the current state of a tenant's artifact,
// or nothing if decide returns nil. cause is nil for the collector.
func (s *Service) change(ctx context.Context, tenant, id, name string, cause *contract.Event, decide func(*shelf.Artifact) (canon.Document, error)) error {
	var now *shelf.Artifact
	if err := s.read(ctx, func(v *shelf.View) { now = v.Get(tenant, id).Clone() }); err != nil {
		return err
	}
	_, err := handle.Do(ctx, s.env.Emit.Log, bus.AggregateFilter(tenant, services.Work, id), func(history []*contract.Event) (*contract.Event, error) {
		doc, err := decide(now.Refold(history))
		if err != nil || doc == nil {
			return nil, err
		}
		return s.env.Emit.In(tenant).New(name, id, contract.Bytes(doc), cause), nil
	})
	return err
}

// delete records artifact_deleted for an upload; the collector removes the content later. If the
// upload was deleted before, delete records nothing and returns nil. If shelf.Artifact.Deletable
// returns an error, such as shelf.ErrHeld, delete records nothing and returns the error. If a call
// cited the artifact between the decision and the record, the record has no effect and the error
// is shelf.ErrCited. Its other errors are those of the ledger and of reading the view.
func (s *Service) delete(ctx context.Context, tenant, id, upload, call, reason string, cause *contract.Event) error {
	if err := s.change(ctx, tenant, id, contract.EventArtifactDeleted, cause, func(a *shelf.Artifact) (canon.Document, error) {
		d, err := a.Deletable(call, upload, reason)
		if d == nil {
			return nil, err
		}
		return d, nil
	}); err != nil || reason == shelf.Quota {
		return err
	}
	cited := false
	if err := s.read(ctx, func(v *shelf.View) { cited = v.Get(tenant, id).Cites(upload) }); err != nil {
		return err
	}
	if cited {
		return shelf.ErrCited
	}
	return nil
}

// remove executes artifact.delete.
func (s *Service) remove(ctx context.Context, w *execute.Work, a *args) execute.Result {
	x, _, err := s.find(ctx, w, a.Artifact)
	if err != nil {
		return failed(err)
	}
	n := 0
	for _, u := range x.Uploads {
		if u.Data.Actor != w.Event.Actor || u.Deleted != "" {
			continue
		}
		if err := s.delete(ctx, w.Event.Tenant, x.ID, u.Data.Upload, w.Call.ID, shelf.Deleted, w.Event); err != nil {
			return failed(err)
		}
		n++
	}
	if n == 0 {
		return failed(shelf.ErrNotFound)
	}
	return output(map[string]any{"artifact": a.Artifact, "uploads": n})
}

// hold executes artifact.hold.
func (s *Service) hold(ctx context.Context, w *execute.Work, a *args) execute.Result {
	if _, _, err := s.find(ctx, w, a.Artifact); err != nil {
		return failed(err)
	}
	err := s.change(ctx, w.Event.Tenant, a.Artifact, contract.EventArtifactHeld, w.Event, func(x *shelf.Artifact) (canon.Document, error) {
		if x.Of(reads(w), s.env.Emit.Now()) == nil { // it was deleted meanwhile
			return nil, shelf.ErrNotFound
		}
		return &events.ArtifactHeld{Artifact: a.Artifact, CallID: w.Call.ID, Reason: a.Reason}, nil
	})
	if err != nil {
		return failed(err)
	}
	return output(map[string]any{"artifact": a.Artifact, "held": true})
}

// release executes artifact.release.
func (s *Service) release(ctx context.Context, w *execute.Work, a *args) execute.Result {
	holder := w.Event.Actor
	if a.Holder != "" && a.Holder != holder {
		if !slices.Contains(w.Call.Scopes, "policy:admin") {
			return execute.Fail(contract.CodeDenied, "the hold of another principal is released by holders of policy:admin")
		}
		holder = a.Holder
	}
	err := s.change(ctx, w.Event.Tenant, a.Artifact, contract.EventArtifactReleased, w.Event, func(x *shelf.Artifact) (canon.Document, error) {
		d, err := x.Releasable(w.Call.ID, holder)
		if d == nil {
			return nil, err
		}
		return d, nil
	})
	if err != nil {
		return failed(err)
	}
	return output(map[string]any{"artifact": a.Artifact, "held": false})
}
