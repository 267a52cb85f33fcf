package govern

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// TestSecretAccess shows that entries are added and withdrawn one by one, that the secrets of a
// withdrawn entry stay listed, that the default is "intent" until another one is set, which
// arguments are rejected, and that the dump contains the list.
func TestSecretAccess(t *testing.T) {
	d := &desk{t: t, lamport: 1}
	calls := 0
	do := func(kind string, args any) error {
		calls++
		raw, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse(kind, raw)
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.Decide(&d.st, Caller{CallID: fmt.Sprint("c-", calls), Actor: "dana", Now: noon})
		if err == nil {
			d.fold(0, f.Name, f.Data)
		}
		return err
	}
	state := func() string {
		l := d.st.Access.List()
		if l == nil {
			return "none"
		}
		out := l.Default
		for _, e := range l.Entries {
			out += fmt.Sprintf(" %s/%s/%s/%s", e.Secret, e.Subject, e.Client, e.Tool)
		}
		return out + fmt.Sprint(l.Listed)
	}
	is := func(want string) {
		t.Helper()
		if got := state(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	is("none")
	if dump := string(d.st.Dump()); strings.Contains(dump, "secret_access") {
		t.Errorf("the dump without a list: %s", dump)
	}
	d.refused(do(KindWithdrawSecret, withdrawSecretArgs{"sa-x"}), "id: no entry")
	d.refused(do(KindSecretDefault, secretDefaultArgs{"open"}), "default: want")
	d.refused(do(KindGrantSecret, grantSecretArgs{Secret: "a*b", Subject: "x"}), "secret: ")
	d.refused(do(KindGrantSecret, grantSecretArgs{Secret: "a"}), "subject: ")
	d.refused(do(KindGrantSecret, grantSecretArgs{Secret: "a", Subject: "x", Host: "/"}), "host: ")
	d.refused(do(KindGrantSecret, grantSecretArgs{Secret: "a", Subject: "x", TTLMS: MaxTerm.Milliseconds() + 1}), "ttl_ms: ")
	is("none")
	d.ok(do(KindGrantSecret, grantSecretArgs{Secret: "b", Subject: "x", TTLMS: 1000}))
	d.ok(do(KindGrantSecret, grantSecretArgs{Secret: "a", Subject: "y", Client: "cli", Tool: "t.*"}))
	d.ok(do(KindGrantSecret, grantSecretArgs{Secret: "a", Subject: "z", MaxUses: 3, Approval: true}))
	is("intent b/x/*/* a/y/cli/t.* a/z/*/*[a b]")
	if e := d.st.Access.List().Entries; e[0].Expires != contract.Time(noon.Add(time.Second)) || e[1].Expires != "" || e[2].MaxUses != 3 || !e[2].Approval {
		t.Errorf("%+v", e)
	}
	d.ok(do(KindSecretDefault, secretDefaultArgs{contract.SecretDefaultDeny}))
	d.ok(do(KindWithdrawSecret, withdrawSecretArgs{d.st.Access.List().Entries[0].ID}))
	is("deny a/y/cli/t.* a/z/*/*[a b]")
	if dump := string(d.st.Dump()); !strings.Contains(dump, `{"secret_access":{"default":"deny","entries":[`) {
		t.Errorf("the dump with a list: %s", dump)
	}
	full := &contract.SecretAccess{Default: contract.SecretDefaultIntent, Entries: make([]contract.SecretEntry, guard.MaxSecretEntries-1)}
	d.st.Access.list = full
	d.ok(do(KindGrantSecret, grantSecretArgs{Secret: "a", Subject: "x"}))
	d.refused(do(KindGrantSecret, grantSecretArgs{Secret: "a", Subject: "x"}), "entries: ")
	full.Entries = nil
	d.st.Access.list = full
	for i := range guard.MaxListedSecrets {
		full.Listed = append(full.Listed, fmt.Sprint("n", i))
	}
	d.refused(do(KindGrantSecret, grantSecretArgs{Secret: "a", Subject: "x"}), "secret: ")
	d.ok(do(KindGrantSecret, grantSecretArgs{Secret: "n7", Subject: "x"}))
}
