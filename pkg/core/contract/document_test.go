package contract

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// documents returns the documents that TestDocuments checks, each without content.
func documents() []canon.Document {
	return []canon.Document{
		&Activated{}, &Allowed{}, &Approval{}, &ApprovalRule{}, &Attestation{}, &Ballot{}, &Call{}, &CellOpened{}, &ConfigReloaded{}, &Content{}, &Decision{}, &Effect{}, &Encryption{}, &Escalated{},
		&ExecutionIntent{}, &FreezeAck{}, &LogEpoch{}, &Operator{}, &PolicyDigests{}, &Quota{}, &Receipt{}, &Recorded{}, &Reservation{}, &Sandbox{}, &Snapshot{}, &SnapshotRejected{}, &SecretGrant{}, &Started{}, &Tool{}, &ToolApproved{},
		&PasskeyRegistered{}, &Assertion{}, &TenantCreated{}, &TenantQuotaSet{}, &TenantState{}, &TrustKey{}, &Usage{}, &Amounts{},
	}
}

// fill sets every field below v to a value that is not empty. Integers differ from each
// other.
func fill(v reflect.Value, n *int64) {
	*n++
	switch {
	case v.Type() == reflect.TypeFor[Raw]():
		v.SetBytes([]byte(`{"raw":[1,"é"]}`))
	case v.Kind() == reflect.String:
		v.SetString(strings.Repeat("x", int(*n%7)) + " \"é\n")
	case v.Kind() == reflect.Int64:
		v.SetInt(*n)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	}
}

// canonical returns the document's canonical bytes as encoding/json and Transform
// produce them, independently of Canonical.
func canonical(t *testing.T, d canon.Document) string {
	t.Helper()
	b, err := json.Marshal(d)
	if err == nil {
		b, err = canon.Transform(nil, b)
	}
	if err != nil {
		t.Fatalf("%T: %v", d, err)
	}
	return string(b)
}

// TestDocuments shows that a document lists the same members as its struct tags, with
// the same names and omitempty flags, that its bytes are canonical and read back to an
// equal document, and that bytes that are cut short or have additions are rejected.
func TestDocuments(t *testing.T) {
	for _, d := range documents() {
		typ := reflect.TypeOf(d).Elem()
		for _, full := range []bool{false, true} {
			v := reflect.New(typ)
			if n := int64(1); full {
				fill(v.Elem(), &n)
			} else {
				complete(v.Elem())
			}
			doc := v.Interface().(canon.Document)
			got := string(Bytes(doc))
			if want := canonical(t, doc); got != want {
				t.Errorf("%s: %s\nwant %s", typ, got, want)
			}
			back := reflect.New(typ)
			if err := Decode([]byte(got), back.Interface().(canon.Document)); err != nil || !reflect.DeepEqual(back.Interface(), v.Interface()) {
				t.Errorf("%s comes back as %+v, %v", typ, back.Elem(), err)
			}
			for n := range got {
				if Decode(slices.Clip([]byte(got[:n])), reflect.New(typ).Interface().(canon.Document)) == nil {
					t.Errorf("%s is accepted though it is cut short: %s", typ, got[:n])
				}
			}
			if Decode([]byte(got+" "), reflect.New(typ).Interface().(canon.Document)) == nil ||
				Decode([]byte(got[:len(got)-1]+`,"zz":1}`), reflect.New(typ).Interface().(canon.Document)) == nil {
				t.Errorf("%s is accepted with more behind it or within it", typ)
			}
		}
	}
}

// complete sets the fields that a document must always have: arrays and raw
// values that are not optional.
func complete(v reflect.Value) {
	for i := range v.NumField() {
		f, tag := v.Field(i), v.Type().Field(i).Tag.Get("json")
		switch {
		case strings.HasSuffix(tag, ",omitempty"):
		case f.Type() == reflect.TypeFor[Raw]():
			f.SetBytes([]byte("null"))
		case f.Kind() == reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 0, 0))
		case f.Kind() == reflect.Struct:
			complete(f)
		}
	}
}

// TestEmptyOptional shows that an optional member that is present but empty is
// rejected, since it would be a second form of the same document.
func TestEmptyOptional(t *testing.T) {
	for _, c := range []struct {
		d    canon.Document
		text string
	}{
		{&Started{}, `{"call_id":"c","decision_id":"d","executed_by":"","intent_id":"i"}`},
		{&Amounts{}, `{"calls":0}`},
		{&TrustKey{}, `{"algorithm":"a","kid":"k","owner":"o","public_key":"p","revoked":false,"signer_kid":"s","tenant":"t","uses":[]}`},
		{&SecretGrant{}, `{"hosts":[],"name":"n"}`},
		{&Reservation{}, `{"accounts":[],"amounts":{"tokens":0}}`},
	} {
		if err := Decode([]byte(c.text), c.d); err == nil {
			t.Errorf("%s is accepted", c.text)
		}
	}
}

func TestSmall(t *testing.T) {
	for _, c := range []struct {
		grant, name string
		want        bool
	}{
		{"llm.*", "llm.key", true}, {"llm.*", "llm.", true}, {"llm.*", "llm", false}, {"llm.*", "llmx", false}, {"llm.*", "vault.x", false},
		{"llm.key", "llm.key", true}, {"llm.key", "llm.key2", false}, {"*", "x", false}, {"*", "*", true},
		{"llm.*", "llm.previous", false}, {"llm.*", "llm.key.previous", true}, {"llm.*", "llm.previous.previous", true}, {"llm.previous", "llm.previous", true}, // llm.previous is a version of the secret llm
	} {
		if g := (&SecretGrant{Name: c.grant}); g.Permits(c.name) != c.want {
			t.Errorf("%s permits %s: %v", c.grant, c.name, !c.want)
		}
	}
	x := Call{Args: Content{Commitment: "a"}}
	if got := x.Contents(); len(got) != 1 || got[0].Commitment != "a" {
		t.Error(got)
	}
	x.Body = &Content{Commitment: "b"}
	if got := x.Contents(); len(got) != 2 || got[1].Commitment != "b" {
		t.Error(got)
	}
	var r Raw
	if b, err := json.Marshal(r); err != nil || string(b) != "null" {
		t.Errorf("%s, %v", b, err)
	}
	if err := json.Unmarshal([]byte(`{"a": 1}`), &r); err != nil || string(r) != `{"a": 1}` {
		t.Errorf("%s, %v", r, err)
	}
	if VersionOf("allowed") != versions["allowed"] || VersionOf("effect_started") != 2 || VersionOf("no_such_event") != 1 {
		t.Error("a version is not that of the table")
	}
	for name, v := range versions {
		if v < 2 {
			t.Errorf("%s: version %d needs no entry", name, v)
		}
	}
	newest := map[string]int{}
	for id := range schemas {
		newest[id.name] = max(newest[id.name], id.version)
	}
	for name, v := range newest {
		if VersionOf(name) != v {
			t.Errorf("%s is written in version %d, and its newest schema has version %d", name, VersionOf(name), v)
		}
	}
}
