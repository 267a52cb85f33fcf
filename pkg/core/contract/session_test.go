package contract

import (
	"strings"
	"testing"
)

// TestSessionID shows that an id depends on tenant, owner and name, that its owner can
// be checked from the id alone, and that strings in other forms are not derived ids.
func TestSessionID(t *testing.T) {
	id := SessionID("default", "alice", "s-tour")
	if id != SessionID("default", "alice", "s-tour") || !DerivedSession(id) || !Token(id) || !strings.HasPrefix(id, "s-") {
		t.Fatal(id)
	}
	if !OwnsSession("default", "alice", id) || OwnsSession("default", "bob", id) || OwnsSession("other", "alice", id) {
		t.Error("the owner is not separated in", id)
	}
	seen := map[string]bool{id: true}
	for _, x := range [][3]string{{"default", "alice", "s-tour2"}, {"default", "bob", "s-tour"}, {"other", "alice", "s-tour"}, {"defaultalice", "", "s-tour"}, {"default", "alices-", "tour"}} {
		if n := SessionID(x[0], x[1], x[2]); seen[n] {
			t.Error("two sessions of one id", x)
		} else {
			seen[n] = true
		}
	}
	for _, name := range []string{"", "s-", "s-x", id + "a", id[:len(id)-1], strings.ToUpper(id), "t" + id[1:], "s-tour", "s-ABCDEFGHIJKLMNOPQRSTUVWXYZ", "s-judge-c-ABCDEFGHIJKLMNOPQRSTUVWXYZ", id[:len(id)-1] + "1"} {
		if DerivedSession(name) || OwnsSession("default", "alice", name) {
			t.Errorf("%q is taken for an id", name)
		}
	}
	// 16 bytes need 25.6 base32 characters; the two spare bits of the last one
	// must be zero.
	last := id[len(id)-1]
	for c := byte('a'); c <= 'z'; c++ {
		if other := id[:len(id)-1] + string(c); c != last && DerivedSession(other) && OwnsSession("default", "alice", other) {
			t.Errorf("%s and %s are one id", id, other)
		}
	}
}
