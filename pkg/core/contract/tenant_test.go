package contract_test

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestTenantID shows that a tenant's id consists of its three names, is a valid token, is
// not reserved, and determines the organization, the project and the budget tenant, and
// that an invalid name is an error.
func TestTenantID(t *testing.T) {
	long := strings.Repeat("a", 32)
	for _, parts := range [][3]string{{"acme", "shop", "prod"}, {"a", "1", "0-0"}, {"z", "9", "az09"}, {long, long, long}} {
		id, err := contract.TenantID(parts[0], parts[1], parts[2])
		if err != nil || id != strings.Join(parts[:], "_") || !contract.Token(id) || contract.Reserved(id) {
			t.Errorf("%q: %q, %v", parts, id, err)
		}
		if org, project := contract.TenantParts(id); org != parts[0] || project != parts[0]+"_"+parts[1] {
			t.Errorf("%s: organization %q, project %q", id, org, project)
		}
		if b := contract.BudgetTenant(id); !contract.Reserved(b) || !contract.Token(b) || b != "_org-"+parts[0] {
			t.Errorf("%s: budget tenant %q", id, b)
		}
	}
	for i, what := range []string{"organization", "project", "environment"} {
		for _, bad := range []string{"", "-a", "a-", "-", "a_b", "A", "a.b", "a b", "é", "a/b", "a:b", "a`b", "a{b", long + "a"} {
			parts := [3]string{"a", "b", "c"}
			parts[i] = bad
			if id, err := contract.TenantID(parts[0], parts[1], parts[2]); err == nil || id != "" || !strings.HasPrefix(err.Error(), what+" ") {
				t.Errorf("%q: %q, %v, want an error about the %s", parts, id, err, what)
			}
		}
	}
}

// TestTenantParts shows that ids of older releases, which may have any number of parts,
// keep their organizations and projects, and that the cell's tenant belongs to none.
func TestTenantParts(t *testing.T) {
	for id, want := range map[string][2]string{
		"default": {"default", "default"}, "a_b": {"a", "a_b"}, "a_b_c": {"a", "a_b"}, "a_b_c_d": {"a", "a_b"}, "a__c": {"a", "a_"},
		contract.CellTenant: {"", ""}, "_cel": {"", "_cel"},
	} {
		if org, project := contract.TenantParts(id); org != want[0] || project != want[1] {
			t.Errorf("%s: %q and %q, want %q", id, org, project, want)
		}
	}
}

// TestBudgetTenant shows that tenants of one organization have one budget ledger, and that
// a tenant whose id has another form has its own.
func TestBudgetTenant(t *testing.T) {
	for id, want := range map[string]string{"acme_shop_prod": "_org-acme", "acme_shop_test": "_org-acme", "acme_web_prod": "_org-acme", "other_shop_prod": "_org-other",
		"default": "default", "a_b": "a_b", "a_b_c_d": "a_b_c_d", "A_b_c": "A_b_c", "a__c": "a__c", contract.CellTenant: contract.CellTenant} {
		if got := contract.BudgetTenant(id); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
}

// TestReserved shows that only ids that begin with an underscore are reserved.
func TestReserved(t *testing.T) {
	for id, want := range map[string]bool{contract.CellTenant: true, "_org-acme": true, "_": true, "": false, "default": false, "a_b_c": false} {
		if contract.Reserved(id) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}
