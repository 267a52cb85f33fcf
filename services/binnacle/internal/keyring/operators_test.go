package keyring

import (
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// TestOperators shows that Delegate needs an open cell, that Delegate and Withdraw reject
// invalid principals, that OpenCell makes the first operator, that each document for a
// principal is newer than the one before, even if the clock does not advance or is set back,
// and that the ledger's readers accept all of them in this order.
func TestOperators(t *testing.T) {
	r := released(t)
	if all, err := Operators(r); len(all) != 0 || err != nil {
		t.Fatal(all, err)
	}
	if _, err := Delegate(r, "ann", 0, time.Now()); err == nil || !strings.Contains(err.Error(), "trust cell") {
		t.Error(err)
	}
	opened, err := r.OpenCell()
	if err != nil {
		t.Fatal(err)
	}
	all, err := Operators(r)
	if err != nil || len(all) != 1 || all[0].Principal != Operator || all[0].Withdrawn || all[0].NotAfter != "" {
		t.Fatalf("%+v %v", all, err)
	}
	now, err := contract.ParseTime(all[0].Issued)
	if err != nil {
		t.Fatal(err)
	}
	for i, change := range []func() (*contract.Operator, error){
		func() (*contract.Operator, error) { return Withdraw(r, Operator, now) },
		func() (*contract.Operator, error) { return Delegate(r, "ann", time.Hour, now) },
		func() (*contract.Operator, error) { return Delegate(r, Operator, 0, now) },
	} {
		o, err := change()
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 && o.NotAfter != contract.Time(now.Add(time.Hour)) || i != 1 && o.NotAfter != "" || o.Withdrawn != (i == 0) {
			t.Errorf("document %d: %+v", i, o)
		}
		now = now.Add(-time.Minute)
	}
	for _, name := range []string{"", " ann"} {
		if _, err := Delegate(r, name, 0, now); err == nil {
			t.Errorf("%q is an operator", name)
		}
	}
	if _, err := Withdraw(r, "bob", now); err == nil || !strings.Contains(err.Error(), `"bob" is not an operator`) {
		t.Error(err)
	}
	if all, err = Operators(r); err != nil || len(all) != 4 {
		t.Fatalf("%+v %v", all, err)
	}

	if newest := Newest(all); len(newest) != 2 || newest[0].Principal != "ann" || newest[1] != all[3] {
		t.Errorf("newest documents %+v", newest)
	}

	reg, cell := trust.Registry{Root: r.RootKID}, trust.Cell{}
	docs, err := r.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if err := reg.Apply(docs[0], 1); err != nil {
		t.Fatal(err)
	}
	apply := func(name, tenant string, data []byte) {
		t.Helper()
		if err := cell.Apply(&contract.Event{ID: "e", Source: "provision/provision-1", Name: name, Tenant: tenant, Lamport: 2, Time: contract.Time(now), Data: data}, reg.At); err != nil {
			t.Error(err)
		}
	}
	apply(contract.EventCellOpened, "acme", contract.Bytes(opened))
	for i := range all {
		name := contract.EventOperatorDelegated
		if all[i].Withdrawn {
			name = contract.EventOperatorWithdrawn
		}
		apply(name, contract.CellTenant, contract.Bytes(&all[i]))
		if want := i != 1 && i != 2; cell.Operator(Operator, contract.Time(now)) != want {
			t.Errorf("after %d documents: operator is %t, want %t", i+1, !want, want)
		}
	}
}
