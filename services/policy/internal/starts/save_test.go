package starts

import "testing"

// TestSave shows that a saved view loads as an equal view, and that a malformed state
// changes nothing.
func TestSave(t *testing.T) {
	var v View
	const state = `{"at":9,"calls":[{"call_id":"c-a","seq":3,"subject":"evt.t.policy.gw1.allowed_judge.s-1","expired":false},{"call_id":"c-a","seq":5,"subject":"evt.u.policy.gw1.allowed_judge.s-1","expired":false},{"call_id":"c-b","seq":4,"subject":"evt.t.policy.gw1.allowed_judge.s-1","expired":true}]}`
	if err := v.Load([]byte(state)); err != nil {
		t.Fatal(err)
	}
	at, dump := v.Dump()
	if at != 9 || string(dump) != `{"call_id":"c-a","seq":3,"tenant":"t"}`+"\n"+`{"call_id":"c-a","seq":5,"tenant":"u"}`+"\n"+`{"call_id":"c-b","seq":4,"state":"expired","tenant":"t"}`+"\n" {
		t.Errorf("at %d:\n%s", at, dump)
	}
	if b, last, err := v.Save(); err != nil || last != 9 || string(b) != state {
		t.Errorf("%s %d %v", b, last, err)
	}
	for _, bad := range []string{`{"at":`, `{"at":9,"calls":[{"call_id":"c-a","seq":3,"subject":"evt.t","expired":false}]}`} {
		if err := v.Load([]byte(bad)); err == nil {
			t.Errorf("a malformed state is loaded: %s", bad)
		}
	}
	if _, again := v.Dump(); string(again) != string(dump) {
		t.Errorf("after an error:\n%s", again)
	}
}
