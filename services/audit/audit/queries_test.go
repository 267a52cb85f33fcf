package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// handlers implements rpc.Registrar.
type handlers map[string]transient.Handler

// Serve implements rpc.Registrar.
func (h handlers) Serve(verb string, f transient.Handler, _ ...string) { h[verb] = f }

// querySchema is the schema of a query, as far as tests read it.
type querySchema struct {
	ID         string `json:"$id"`
	Scope      string `json:"x-scope"`
	Properties struct {
		Request struct {
			Ref        string                     `json:"$ref"`
			Properties map[string]json.RawMessage `json:"properties"`
		} `json:"request"`
	} `json:"properties"`
}

// schemasOfQueries returns the schemas of audit's queries by verb.
func schemasOfQueries(t *testing.T) map[string]querySchema {
	t.Helper()
	files, err := filepath.Glob("../../../schemas/queries/audit/*.json")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]querySchema{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var q querySchema
		if err := json.Unmarshal(b, &q); err != nil {
			t.Fatal(err)
		}
		if verb, ok := strings.CutPrefix(q.ID, "urn:binnacle:query:audit:"); ok {
			if q.Properties.Request.Ref != "" {
				q.Properties.Request.Properties = map[string]json.RawMessage{"call_id": nil}
			}
			out[verb] = q
		}
	}
	return out
}

// ofNoTenant lists the members of requests that name nothing of a tenant, with a value.
var ofNoTenant = map[string]any{"limit": 100, "offset": 0, "witnessed": 0, "witness": false, "epoch": 0, "redact": "", "from": 0, "to": 0, "before": 0, "since": "", "until": "", "disclose": []string{}, "next": "",
	"index": 0, "level": 0, "width": 1, "size": 1, "line": "", "name": ""}

// asOneLog lists the queries about the log itself, which all tenants share and which names
// nothing of a tenant. It contains tenant_export, whose response begins with a checkpoint
// and whose request contains no id.
var asOneLog = []string{"checkpoint", "consistency", "tenant_export"}

// TestForeignIDs sends every query of schemas/queries/audit, except those in asOneLog and
// those of scope cell, for a tenant with the ids of another tenant, and with ids that
// never existed. Both responses must be equal apart from the ids, and contain nothing of
// the other tenant. With the ids of the tenant itself, the response must differ, except
// for queries that would need checkpoints or blobs, or an event that this ledger lacks. A
// query of scope cell is for the cell's tenant only, which package rpc checks.
func TestForeignIDs(t *testing.T) {
	v := open(t, t.TempDir())
	defer v.Close()
	var r register
	r.key(t, "mesh", "provision")
	entries := slices.Concat(r, tenantCall(t, "a", "s-1", 2), tenantCall(t, "b", "s-2", 6))
	for i := range entries[1:5] {
		entries[1+i] = changed(t, entries[1+i], entries[1+i].Seq, func(e *contract.Event) { e.Actor = "arthur" })
	}
	addAll(t, v, entries)
	log := &memlog.Log{}
	for _, en := range entries {
		if _, err := log.Append(t.Context(), en.Subject, "", en.Data); err != nil {
			t.Fatal(err)
		}
	}
	all := handlers{}
	(&Service{view: v, env: &run.Env{Emit: &emit.Emitter{Log: log}}}).serve(&rpc.Server{Transport: all})
	ids := func(call []eventlog.Entry) map[string]any {
		rec, err := receiptIn(call[3])
		if err != nil {
			t.Fatal(err)
		}
		e := decoded(t, call[0])
		return map[string]any{"session": e.Session, "call_id": e.CallID, "digest": contract.Digest(rec), "seq": call[0].Seq, "actor": e.Actor,
			"ids": []string{e.CallID, e.Session, rec.OutputDigest}, "terms": map[string]string{"session": e.Session}}
	}
	theirs, own := ids(entries[1:5]), ids(entries[5:9])
	never := map[string]any{"session": "s-9", "call_id": "c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "digest": sign.Digest([]byte("never")), "seq": 99, "actor": "nemo",
		"ids": []string{"c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "s-9", sign.Digest([]byte("never"))}, "terms": map[string]string{"session": "s-9"}}
	named := 0
	schemas := schemasOfQueries(t)
	if got, want := slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(schemas)); !slices.Equal(got, want) {
		t.Fatalf("handlers of %s, schemas of %s", got, want)
	}
	for verb, q := range schemas {
		if q.Scope == "cell" || slices.Contains(asOneLog, verb) {
			continue
		}
		ask := func(of map[string]any) string {
			req, used := map[string]any{}, map[string]any{}
			for name := range q.Properties.Request.Properties {
				value, ok := of[name]
				if ok {
					used[name] = value
				} else if value, ok = ofNoTenant[name]; !ok {
					t.Fatalf("%s: no value for %s; add one to the test", verb, name)
				}
				req[name] = value
			}
			named += len(used)
			raw, err := json.Marshal(req)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err = all[verb](transient.InTenant(context.Background(), "b"), raw, func(doc any) error {
				b, err := transient.Encode(doc)
				out.Write(b)
				return err
			})
			text := fmt.Sprint(out.String(), err, rpc.CodeOf(err))
			for _, value := range used {
				for _, id := range texts(value) {
					text = strings.ReplaceAll(text, id, "ID")
				}
			}
			return text
		}
		foreign := ask(theirs)
		if foreign != ask(never) {
			t.Errorf("%s with another tenant's ids: %s\nwith ids that never existed: %s", verb, foreign, ask(never))
		}
		for _, secret := range []string{theirs["call_id"].(string), theirs["digest"].(string), "s-1"} {
			if strings.Contains(foreign, secret) {
				t.Errorf("%s: the response contains %s of another tenant: %s", verb, secret, foreign)
			}
		}
		if len(q.Properties.Request.Properties) > 0 && !slices.Contains([]string{"sessions", "evidence", "proofgraph", "proof", "late_report", "cancellation", "deferral", "transcript"}, verb) && ask(own) == foreign { // some need checkpoints or blobs, or have no such event
			t.Errorf("%s: the response to the tenant's own ids equals that to foreign ids: %s", verb, foreign)
		}
	}
	if named < 20 {
		t.Errorf("the requests contain only %d ids", named)
	}
}

// texts returns the strings in a value of a request.
func texts(value any) []string {
	switch v := value.(type) {
	case string:
		return []string{v}
	case []string:
		return v
	case map[string]string:
		return slices.Collect(maps.Values(v))
	}
	return nil
}
