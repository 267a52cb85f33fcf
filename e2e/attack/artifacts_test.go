package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// victim is an artifact of the administrator.
type victim struct {
	id, upload, index string
	content           []byte
}

// newVictim stores an artifact of several parts.
func newVictim(t *testing.T, m *harness.Mesh, name string) *victim {
	t.Helper()
	v := &victim{content: bytes.Repeat([]byte(name+" and ballast\n"), artifact.PartSize/10)}
	r, err := m.DoHeader(t.Context(), "POST", "/api/v1/artifacts?name="+name, string(v.content), map[string]string{"X-Binnacle-Session": "s-" + name})
	if err != nil {
		t.Fatal(err)
	}
	must(t, r, http.StatusOK, contract.IDArtifact)
	var doc struct {
		Output struct{ Artifact string }
	}
	r.JSON(t, &doc)
	v.id = doc.Output.Artifact
	var info struct{ Upload, Index string }
	described(t, m, v.id).JSON(t, &info)
	v.upload, v.index = info.Upload, info.Index
	return v
}

// described returns the description of an artifact.
func described(t *testing.T, m *harness.Mesh, id string) *harness.Response {
	t.Helper()
	r, err := m.Do(t.Context(), "GET", "/api/v1/artifacts/"+id, "", "")
	if err != nil {
		t.Fatal(err)
	}
	must(t, r, http.StatusOK, id)
	return r
}

// intact fails the test unless the administrator reads the content.
func (v *victim) intact(t *testing.T, m *harness.Mesh, after string) {
	t.Helper()
	r, err := m.Do(t.Context(), "GET", "/api/v1/artifacts/"+v.id+"/content", "", "")
	if err != nil || r.Status != http.StatusOK || !bytes.Equal(r.Body, v.content) {
		t.Errorf("after %s, the artifact cannot be read: %v, status %d, %d bytes", after, err, r.Status, len(r.Body))
	}
}

// publish publishes a message with the identity of a service. It connects anew, because a connection
// ends when the server refuses a message.
func publish(t *testing.T, m *harness.Mesh, service, subject string, data []byte) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := m.Connect(t, service).Publish(ctx, &nats.Msg{Subject: subject, Data: data})
	return err
}

// A principal of the same tenant that has the facts about the artifact of another one, its id,
// the id of its upload and its digests, neither reads nor keeps nor deletes it, makes no link to it,
// does not name it as an input, and does not make the upload an artifact of its own.
var _ = register("artifacts of another principal", func(t *testing.T, m *harness.Mesh) {
	v := newVictim(t, m, "cargo")
	thief := m.TokenFor("thief", "tools:call")
	at := "/api/v1/artifacts/" + v.id
	for _, x := range []struct{ method, path, body, header string }{
		{"GET", at, "", ""}, {"GET", at + "/content", "", ""}, {"GET", at + "/content", "", "bytes=0-9"}, {"POST", at + "/link", `{"ttl_s":60}`, ""},
	} {
		r, err := m.As(thief).DoHeader(t.Context(), x.method, x.path, x.body, map[string]string{"Range": x.header, "Content-Type": "application/json"})
		if err != nil {
			t.Fatal(err)
		}
		if r.Status != http.StatusNotFound || bytes.Contains(r.Body, []byte("ballast")) {
			t.Errorf("%s %s: %d %.200s", x.method, x.path, r.Status, r.Body)
		}
	}
	list := as(t, m, thief, "GET", "/api/v1/artifacts", "", "")
	if must(t, list, http.StatusOK, "["); strings.Contains(string(list.Body), v.id) {
		t.Errorf("the list of another principal: %s", list.Body)
	}
	must(t, as(t, m, thief, "GET", "/api/v1/artifacts?all=true", "", ""), http.StatusForbidden, "audit:read")
	named, _ := json.Marshal(map[string]any{"artifact": v.id})
	stolen, _ := json.Marshal(map[string]any{"upload": v.upload, "size": len(v.content), "digest": artifact.DigestOf(v.id), "index": v.index})
	for tool, args := range map[string]string{"artifact.get": string(named), "artifact.info": string(named), "artifact.link": string(named), "artifact.hold": string(named), "artifact.release": string(named), "artifact.delete": string(named),
		"artifact.put": string(stolen), "artifact.put with inputs": `{"content":"x","inputs":["` + v.id + `"]}`} {
		name, _, _ := strings.Cut(tool, " ")
		if r := as(t, m, thief, "POST", "/api/v1/packs/"+name, "s-thief", args); r.Status < 400 || r.Status >= 500 || bytes.Contains(r.Body, []byte("ballast")) {
			t.Errorf("%s: %d %s", tool, r.Status, r.Body)
		}
	}
	var info struct{ Held, Cited bool }
	if described(t, m, v.id).JSON(t, &info); info.Held || info.Cited {
		t.Errorf("another principal holds or cites the artifact: %+v", info)
	}
	v.intact(t, m, "the attempts of another principal")
})

// No identity but that of work removes parts of artifacts, and none replaces one or stores one in
// the name of another service. A session-runner that records an upload of the gateway as its own, or
// a service that records a deletion, a hold or a removal, changes nothing.
var _ = register("artifacts and the identities of services", func(t *testing.T, m *harness.Mesh) {
	if m.NATS == "" {
		return // the embedded server has no listener; TestOneProcessListener and TestPermissions cover it
	}
	v := newVictim(t, m, "manifest")
	part := "art." + tenant + ".gateway." + v.upload
	const purge = "STREAM.PURGE."
	own := []string{services.Gateway, services.SessionRunner, services.Work}
	for _, service := range harness.Services {
		for what, subject := range map[string]string{
			"replaces a part":             part + ".0",
			"adds a part to an upload":    part + ".99",
			"stores in the name of work":  "art." + tenant + ".work." + v.upload + ".0",
			"stores in another form":      "art." + v.upload,
			"stores in its own name only": "art." + tenant + "." + service + "." + v.upload + ".1000",
		} {
			may := slices.Contains(own, service) && strings.Contains(subject, "."+service+".") && subject != part+".0" // the index names no such part
			if err := publish(t, m, service, subject, []byte("forged")); (err == nil) != may {
				t.Errorf("%s %s: %v", service, what, err)
			}
		}
		for call, body := range map[string]any{"STREAM.DELETE.": nil, "STREAM.MSG.DELETE.": map[string]int{"seq": 1}, "STREAM.UPDATE.": map[string]any{"name": bus.Artifacts, "subjects": []string{"art.>"}},
			purge: map[string]string{"filter": "art." + tenant + ".gateway.u-none.>"}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := m.Connect(t, service).API(ctx, call+bus.Artifacts, body, &struct{}{})
			cancel()
			if may := service == services.Work && call == purge; (err == nil) != may {
				t.Errorf("%s %s: %v", service, call, err)
			}
		}
	}
	v.intact(t, m, "requests of all services")
	for service, events := range map[string]map[string]string{
		services.SessionRunner: {
			contract.EventArtifactStored: fmt.Sprintf(`{"actor":"thief","artifact":%q,"call_id":"c-1","index":%q,"inputs":[],"kind":"tool.x","media_type":"text/plain","name":"x","retain_ms":0,"service":"gateway","session":"s-1","size":%d,"upload":"u-forged"}`, v.id, v.index, len(v.content)),
			contract.EventArtifactUsed:   fmt.Sprintf(`{"artifact":%q,"call_id":"c-1"}`, v.id),
		},
		services.Gateway: {contract.EventArtifactDeleted: fmt.Sprintf(`{"artifact":%q,"call_id":"c-1","reason":"deleted","upload":%q}`, v.id, v.upload)},
		services.Policy:  {contract.EventArtifactRemoved: fmt.Sprintf(`{"service":"gateway","upload":%q}`, v.upload)},
	} {
		for name, data := range events {
			e := &contract.Event{ID: emit.NewID(contract.IDEvent), Source: service + "/" + service + "-1", Name: name, Version: contract.VersionOf(name), Key: v.id, Tenant: tenant, Actor: "thief", Client: "-", Origin: "-", Time: contract.Time(time.Now()), Lamport: 1 << 20, Data: []byte(data)}
			raw, err := e.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if err := publish(t, m, service, e.Subject(), raw); err != nil {
				t.Errorf("%s cannot publish under its own name: %v", service, err)
			}
			subject := strings.Replace(e.Subject(), "."+service+".", "."+services.Work+".", 1)
			if publish(t, m, service, subject, raw) == nil {
				t.Errorf("%s publishes %s", service, subject)
			}
		}
	}
	thief := m.TokenFor("thief", "tools:call")
	must(t, as(t, m, thief, "GET", "/api/v1/artifacts/"+v.id+"/content", "", ""), http.StatusNotFound, "")
	var info struct{ Held, Cited bool }
	if described(t, m, v.id).JSON(t, &info); info.Held || info.Cited {
		t.Errorf("a forged event changed the artifact: %+v", info)
	}
	v.intact(t, m, "forged events")
})
