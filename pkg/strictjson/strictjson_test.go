package strictjson

import (
	"encoding/json"
	"errors"
	"testing"
)

type inner struct {
	Name  string  `json:"name"`
	Share float64 `json:"share"`
}

type outer struct {
	N     uint64           `json:"n"`
	On    bool             `json:"on"`
	List  []inner          `json:"list"`
	Named map[string]inner `json:"named"`
	Raw   json.RawMessage  `json:"raw"`
	Some  *inner           `json:"some"`
}

func TestDecode(t *testing.T) {
	for doc, want := range map[string]string{
		`{"n":1,"on":true,"list":[{"name":"a","share":0.5}],"named":{"x":{"name":"b"}},"raw":[1],"some":null}`: "",
		`[]`:                                ": want a JSON object",
		`{"N":1}`:                           "/N: unknown member; known are n, on, list, named, raw, some",
		`{"n":-1}`:                          "/n: want a whole number from 0",
		`{"on":"yes"}`:                      "/on: want true or false",
		`{"list":{}}`:                       "/list: want a list",
		`{"list":[{"name":"a"},{"nam":1}]}`: "/list/1/nam: unknown member; known are name, share",
		`{"named":{"a/b":{"share":"x"}}}`:   "/named/a~1b/share: want a number",
		`{"some":{"name":3}}`:               "/some/name: want a string",
	} {
		var v outer
		err := Decode([]byte(doc), &v)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", doc, got, want)
		}
	}
	var v outer
	var e *Error
	if err := Decode([]byte(`{"n":`), &v); err == nil || errors.As(err, &e) {
		t.Errorf("what is not JSON: %v", err)
	}
}

type Base struct {
	ID string `json:"id"`
}

// Part is embedded under a name of its own.
type Part struct {
	Size int `json:"size"`
}

type composed struct {
	Base
	Part   `json:"part"`
	N      int `json:"n"`
	hidden int
}

// TestEmbedded shows that the members of an embedded struct are members of the document,
// unless it has a name of its own, and that the struct itself and unexported fields are
// none.
func TestEmbedded(t *testing.T) {
	for doc, want := range map[string]string{
		`{"id":"x","n":1,"part":{"size":1}}`: "",
		`{"part":{"id":1}}`:                  "/part/id: unknown member; known are size",
		`{"Base":{}}`:                        "/Base: unknown member; known are id, part, n",
		`{"size":1}`:                         "/size: unknown member; known are id, part, n",
		`{"":{}}`:                            "/: unknown member; known are id, part, n",
		`{"hidden":1}`:                       "/hidden: unknown member; known are id, part, n",
	} {
		var v composed
		got := ""
		if err := Decode([]byte(doc), &v); err != nil {
			got = err.Error()
		}
		if got != want || v.hidden != 0 {
			t.Errorf("%s: got %q, want %q", doc, got, want)
		}
	}
}
