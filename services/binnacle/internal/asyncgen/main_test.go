package main

import (
	"testing"
	"testing/fstest"
)

// TestNewestVersion checks that the message of an event has the newest version of its
// schema, also from version 10 on, and that an id with an invalid version is an error.
func TestNewestVersion(t *testing.T) {
	tree := fstest.MapFS{}
	for _, v := range []string{"v10", "v2", "v9"} {
		tree["events/x/slept."+v+".json"] = &fstest.MapFile{Data: []byte(`{"$id":"urn:binnacle:event:x:slept:` + v + `","title":"Slept"}`)}
	}
	got, err := events(tree)
	if err != nil || len(got) != 1 || got["x.slept"].(object)["name"] != "x.slept.v10" {
		t.Errorf("%v %v", got, err)
	}
	tree["events/x/slept.json"] = &fstest.MapFile{Data: []byte(`{"$id":"urn:binnacle:event:x:slept:next"}`)}
	if _, err := events(tree); err == nil {
		t.Error("a version that is no number is accepted")
	}
}
