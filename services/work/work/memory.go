package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/work/internal/memory"
	"github.com/binnacle-mesh/binnacle/services/work/internal/shelf"
)

// The kinds of calls for memory. An entry is an artifact of its owner, which a call
// memory.store made and whose name is the namespace, a colon and the key. So it has the
// retention, holds, quota and backups of artifacts.
const (
	kindStore  = "tool.memory.store"
	kindRecall = "tool.memory.recall"
	kindForget = "tool.memory.forget"
)

// Properties of several tools.
const (
	keyProp       = `"key":{"maxLength":160,"minLength":1,"pattern":"^[^/\\x00-\\x1f]+$","type":"string"}`
	namespaceProp = `"namespace":{"default":"default","pattern":"^[a-z0-9][a-z0-9._-]{0,63}$","type":"string"}`
)

var memoryTools = []tool{
	{kind: kindStore, class: "E1", again: true, about: "Remembers a text under a key, in place of the one that the key had. Only the caller can recall it.",
		example: `{"key":"tides","tags":["sea"],"value":"The tide rises twice a day"}`,
		props: `"category":{"default":"","maxLength":64,"type":"string"},` + keyProp + `,` + namespaceProp + `,"tags":{"items":{"maxLength":64,"minLength":1,"type":"string"},"maxItems":16,"type":"array"},` +
			`"ttl_s":{"default":0,"description":"time in seconds after which it is forgotten; 0 means no end","maximum":3153600000,"minimum":0,"type":"integer"},"value":{"maxLength":16384,"minLength":1,"type":"string"}`,
		required: `"key","value"`, output: `"artifact":{"type":"string"},"key":{"type":"string"},"namespace":{"type":"string"}`},
	{kind: kindRecall, class: "E0", again: true, about: "Returns what the caller has stored with memory.store: what matches the words of a query best or, without a query, the newest.",
		example: `{"query":"rising tides"}`,
		props: `"category":{"default":"","maxLength":64,"type":"string"},"key":{"default":"","maxLength":160,"type":"string"},"limit":{"default":10,"maximum":50,"minimum":1,"type":"integer"},` + namespaceProp +
			`,"query":{"default":"","description":"words, at least one of which occurs","maxLength":1024,"type":"string"},"tag":{"default":"","maxLength":64,"type":"string"}`,
		output: `"count":{"type":"integer"},"entries":{"items":{"additionalProperties":true,"type":"object"},"type":"array"},"total":{"type":"integer"}`},
	{kind: kindForget, class: "E1", again: true, about: "Forgets what the caller has stored under a key or, without one, everything in the namespace.",
		example: `{"key":"tides"}`,
		props:   `"key":{"default":"","maxLength":160,"type":"string"},` + namespaceProp, output: `"forgotten":{"type":"integer"},"namespace":{"type":"string"}`},
}

// memoryArgs are the arguments of memory.store, memory.recall and memory.forget.
type memoryArgs struct {
	Category  string   `json:"category"`
	Key       string   `json:"key"`
	Limit     int      `json:"limit"`
	Namespace string   `json:"namespace"`
	Query     string   `json:"query"`
	Tag       string   `json:"tag"`
	Tags      []string `json:"tags"`
	TTL       int64    `json:"ttl_s"`
	Value     string   `json:"value"`
}

// remembered returns the readable entries of a caller in a namespace, oldest first: those about the
// data subject of the call or, if it has none, those about no data subject.
func remembered(ctx context.Context, s *Service, w *execute.Work, namespace string) (out []shelf.Entry, err error) {
	now := s.env.Emit.Now()
	err = s.read(ctx, func(v *shelf.View) {
		all, _ := v.List(w.Event.Tenant, w.Event.Actor, now, "", "", math.MaxInt) // an empty before is no error
		for _, e := range all {
			if e.Upload.Data.Kind == kindStore && strings.HasPrefix(e.Upload.Data.Name, namespace+":") && subjectOf(e) == contentkeys.PseudonymOf(w.Call.KeyID()) {
				u := *e.Upload
				out = append(out, shelf.Entry{Artifact: e.Artifact.Clone(), Upload: &u})
			}
		}
	})
	slices.Reverse(out)
	return out, err
}

// subjectOf returns the pseudonym of the data subject that an entry is about, or "".
func subjectOf(e shelf.Entry) string {
	return contentkeys.PseudonymOf(artifact.KeyOf(e.Upload.Data.Upload))
}

// erased reports whether the content key of an entry was destroyed.
func erased(ctx context.Context, s *Service, tenant string, e shelf.Entry) bool {
	id := artifact.KeyOf(e.Upload.Data.Upload)
	if id == "" || s.store.Keys == nil {
		return false
	}
	_, err := s.store.Keys.Key(ctx, tenant, id)
	return errors.Is(err, contract.ErrErased)
}

// keyOf returns the key of an entry.
func keyOf(e shelf.Entry) string {
	_, key, _ := strings.Cut(e.Upload.Data.Name, ":")
	return key
}

// remember executes memory.store. If the call runs again, it returns the result of the entry
// that it has stored.
func remember(ctx context.Context, s *Service, w *execute.Work, a *memoryArgs) execute.Result {
	before, err := remembered(ctx, s, w, a.Namespace)
	if err != nil {
		return failed(err)
	}
	own := inlineUpload(w)
	before = slices.DeleteFunc(before, func(e shelf.Entry) bool { return e.Upload.Data.Upload == own })
	if len(before) >= memory.MaxEntries && !slices.ContainsFunc(before, func(e shelf.Entry) bool { return keyOf(e) == a.Key }) {
		return execute.Fail(contract.CodeResourceExhausted, "the namespace %s has %d entries already: forget some with memory.forget, or store them with ttl_s", a.Namespace, len(before))
	}
	doc, err := json.Marshal(memory.Entry{Category: a.Category, Key: a.Key, Namespace: a.Namespace, Tags: append([]string{}, a.Tags...), Value: a.Value})
	if err == nil {
		doc, err = canon.Transform(nil, doc)
	}
	if err != nil {
		return failed(err)
	}
	content := string(doc)
	res := s.put(ctx, w, &args{Content: &content, MediaType: "application/json", Name: a.Namespace + ":" + a.Key, RetainS: a.TTL})
	if res.ErrorCode != "" {
		return res
	}
	u, err := recorded(ctx, s, w, own)
	if err != nil || u == nil {
		return failed(errors.Join(err, shelf.ErrNotFound))
	}
	for _, e := range before {
		if keyOf(e) != a.Key || e.Upload.Seq > u.Seq { // a later call has replaced this one's entry
			continue
		}
		if err := forget(ctx, s, w, e); err != nil && !errors.Is(err, shelf.ErrHeld) && !errors.Is(err, shelf.ErrCited) {
			return failed(err)
		}
	}
	out := output(map[string]any{"artifact": artifact.ID(res.Artifacts[0]), "key": a.Key, "namespace": a.Namespace})
	out.Artifacts = res.Artifacts
	return out
}

// forget deletes the upload of an entry.
func forget(ctx context.Context, s *Service, w *execute.Work, e shelf.Entry) error {
	return s.delete(ctx, w.Event.Tenant, e.ID, e.Upload.Data.Upload, w.Call.ID, shelf.Deleted, w.Event)
}

// forgetEntries executes memory.forget.
func forgetEntries(ctx context.Context, s *Service, w *execute.Work, a *memoryArgs) execute.Result {
	all, err := remembered(ctx, s, w, a.Namespace)
	if err != nil {
		return failed(err)
	}
	n := 0
	for _, e := range all {
		if a.Key != "" && keyOf(e) != a.Key {
			continue
		}
		if err := forget(ctx, s, w, e); err != nil {
			return failed(fmt.Errorf("the entry %s of namespace %s: %w", keyOf(e), a.Namespace, err))
		}
		n++
	}
	return output(map[string]any{"forgotten": n, "namespace": a.Namespace})
}

// recall executes memory.recall.
func recall(ctx context.Context, s *Service, w *execute.Work, a *memoryArgs) execute.Result {
	all, err := remembered(ctx, s, w, a.Namespace)
	if err != nil {
		return failed(err)
	}
	newest := map[string]shelf.Entry{} // by key; an older one is left if a call ended between storing and deleting
	for _, e := range all {
		newest[keyOf(e)] = e
	}
	all = slices.DeleteFunc(all, func(e shelf.Entry) bool {
		return newest[keyOf(e)].Upload != e.Upload || erased(ctx, s, w.Event.Tenant, e)
	})
	byUpload, uploads := map[string]shelf.Entry{}, []string{}
	for _, e := range all {
		byUpload[e.Upload.Data.Upload], uploads = e, append(uploads, e.Upload.Data.Upload)
	}
	found, err := s.memory.Search(ctx, memory.Space{Tenant: w.Event.Tenant, Actor: w.Event.Actor, Subject: contentkeys.PseudonymOf(w.Call.KeyID()), Namespace: a.Namespace}, uploads, func(ctx context.Context, upload string) (memory.Entry, error) {
		return loadEntry(ctx, s, w.Event.Tenant, byUpload[upload])
	}, memory.Query{Text: a.Query, Key: a.Key, Category: a.Category, Tag: a.Tag, Limit: a.Limit})
	if err != nil {
		return failed(err)
	}
	entries := []map[string]any{}
	for _, f := range found {
		e := byUpload[f.Upload]
		one := map[string]any{"artifact": e.ID, "category": f.Category, "key": f.Key, "score": math.Round(f.Score*1e9) / 1e9, "stored": contract.Time(e.Upload.At), "tags": append([]string{}, f.Tags...), "value": f.Value}
		if end := e.Upload.Expires(); !end.IsZero() {
			one["expires"] = contract.Time(end)
		}
		entries = append(entries, one)
	}
	return output(map[string]any{"count": len(entries), "entries": entries, "total": len(all)})
}

// loadEntry reads the content of an entry.
func loadEntry(ctx context.Context, s *Service, tenant string, e shelf.Entry) (out memory.Entry, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := artifact.Open(ctx, s.store, e.Upload.Object(tenant))
	if err != nil {
		return out, err
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, maxInline))
	if err != nil {
		return out, err
	}
	err = json.Unmarshal(raw, &out)
	return out, err
}

// handleMemory executes a call for memory. ok is false if the call is another one.
func handleMemory(ctx context.Context, s *Service, w *execute.Work) (res execute.Result, ok bool) {
	do := map[string]func(context.Context, *Service, *execute.Work, *memoryArgs) execute.Result{kindStore: remember, kindRecall: recall, kindForget: forgetEntries}[w.Call.Kind]
	if do == nil {
		return res, false
	}
	var a memoryArgs
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "arguments: %v", err), true
	}
	return do(ctx, s, w, &a), true
}
