package contract

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestSchemas shows that the generated tables hold exactly the schema files that
// schemas/LOCK lists. `make gen` writes the tables.
func TestSchemas(t *testing.T) {
	lock, err := os.ReadFile("../../../schemas/LOCK")
	if err != nil {
		t.Fatal(err)
	}
	known := schemaDigests()
	n := 0
	for line := range strings.Lines(string(lock)) {
		digest, file, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			continue
		}
		if n++; known[file] != digest {
			t.Errorf("%s: the table was made from another file (%s); run make gen", file, known[file])
		}
	}
	if n != len(known) || n < 50 {
		t.Errorf("%d schemas in LOCK, %d in the table", n, len(known))
	}
}

// TestCheckData shows that data with an additional, missing or misplaced member or a
// value of another type fails, and so does an event whose name and version have no
// schema.
func TestCheckData(t *testing.T) {
	event := func(name string, version int, data string) *Event {
		return &Event{Name: name, Version: version, Source: "policy/p", Data: []byte(data)}
	}
	good := `{"call_id":"c","decision_id":"d","intent_id":"i"}`
	if err := event("effect_started", 1, good).CheckData(); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*Event{
		event("effect_started", 1, `{"call_id":"c","decision_id":"d","intent_id":"i","z":1}`),
		event("effect_started", 1, `{"call_id":"c","decision_id":"d"}`),
		event("effect_started", 1, `{"call_id":"c","decision_id":"d","intent_id":5}`),
		event("effect_started", 1, `{"decision_id":"d","call_id":"c","intent_id":"i"}`),
		event("effect_started", 99, good),
		event("effect_begun", 1, good),
		event("freeze_acknowledged", 1, good),
	} {
		if e.CheckData() == nil {
			t.Errorf("%s v%d %s passes", e.Name, e.Version, e.Data)
		}
	}
}

// schemaDigests returns the schemas that CheckData supports: the digest of each schema
// file by its path below schemas.
func schemaDigests() map[string]string {
	out := map[string]string{}
	for id, s := range schemas {
		out[fmt.Sprintf("events/%s/%s.v%d.json", id.owner, id.name, id.version)] = s.digest
	}
	return out
}
