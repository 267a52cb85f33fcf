package services

import (
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestRegistry shows that the registry's values are consistent with each other.
func TestRegistry(t *testing.T) {
	seen := map[string]string{}
	once := func(what, key, owner string) {
		if was, ok := seen[what+" "+key]; ok {
			t.Errorf("%s %q is %s's and %s's", what, key, was, owner)
		}
		seen[what+" "+key] = owner
	}
	for _, s := range All() {
		once("name", s.Name, s.Name)
		once("account", s.Account(), s.Name)
		if !contract.Token(s.Name) || s.Name != strings.ToLower(s.Name) || s.Name == Provision {
			t.Errorf("name %q is no lower-case token of a subject, or taken", s.Name)
		}
		for _, k := range s.Kinds {
			once("kind prefix", k.Prefix, s.Name)
			if !contract.Token(k.Prefix) || k.Scope != "" && (!s.Executes || s.Reserved) {
				t.Errorf("%s: kind prefix %q has no executor, or is no token", s.Name, k.Prefix)
			}
		}
		for _, v := range append(slices.Clone(s.Views), s.KeysView()) {
			once("view", v.Name, s.Name)
			once("view's path", v.Path, s.Name)
			if got, of, ok := ViewAt(v.Path); ok == s.Reserved || ok && (of != s.Name || got != v) {
				t.Errorf("the view at %s is %v of %s, want %v of %s", v.Path, got, of, v, s.Name)
			}
		}
		if s.Reserved {
			if s.Slots != 0 || len(s.Uses)+len(s.Files)+len(s.Views)+len(s.Queried) > 0 || s.State != "" || s.Rebuilt || s.Content || s.Instance != "" {
				t.Errorf("%s is reserved and has more than a name", s.Name)
			}
			continue
		}
		if s.Slots < 1 || s.Slots > 8 {
			t.Errorf("%s: %d slots; bus.Live looks for 1 to 8", s.Name, s.Slots)
		}
		if s.Rebuilt && s.State == "" {
			t.Errorf("%s has no folder to rebuild", s.Name)
		}
		if s.State != "" && s.Slots != 1 && !s.Elsewhere {
			t.Errorf("%s has a folder and %d slots: two instances cannot share a folder", s.Name, s.Slots)
		}
		if receipts := slices.Contains(s.Uses, contract.UseReceipt); receipts != s.Executes {
			t.Errorf("%s executes calls: %t, and can sign receipts: %t", s.Name, s.Executes, receipts)
		}
		for _, q := range s.Queried {
			if of, ok := Get(q); !ok || of.Reserved || q == s.Name || q == Gateway {
				t.Errorf("%s is queried by %q", s.Name, q)
			}
		}
	}
	if decides := names(all, func(s *Service) bool { return slices.Contains(s.Uses, contract.UseDecision) }); !slices.Equal(decides, []string{Policy}) {
		t.Errorf("%v sign decisions; the verifier takes policy's alone", decides)
	}
	if signs := names(all, func(s *Service) bool { return slices.Contains(s.Uses, contract.UseCheckpoint) }); !slices.Equal(signs, []string{Audit}) {
		t.Errorf("%v sign checkpoints; the verifier takes audit's alone", signs)
	}
}

// TestReleased shows that the registry has the names that earlier releases have recorded.
// Ledgers contain these names in subjects, intents, kinds and key documents, so none may be
// removed, except audit as an executor: it never took calls. It also shows that the lists of names
// are sorted, and that a gateway expects every program except the gateway.
func TestReleased(t *testing.T) {
	for what, c := range map[string]struct{ have, want []string }{
		"executors":          {Executors(), []string{"gateway", "judge", "lab", "llm-router", "policy", "session-runner", "vault-broker", "work"}},
		"programs":           {Names(), []string{"audit", "gateway", "judge", "llm-router", "policy", "session-runner", "vault-broker"}},
		"readers of content": {ContentReaders(), []string{"audit", "gateway", "judge", "llm-router"}},
		"folders":            {Stateful(), []string{"audit", "vault-broker"}},
		"families of kinds":  {Families(), []string{"audit", "client", "judge", "lab", "llm", "policy", "tenant", "tool", "vault", "work"}},
	} {
		for _, w := range c.want {
			if !slices.Contains(c.have, w) {
				t.Errorf("%s are %v, without %s", what, c.have, w)
			}
		}
		if !slices.IsSorted(c.have) {
			t.Errorf("%s are not sorted: %v", what, c.have)
		}
	}
	if slices.Contains(Expected(), Gateway) || len(Expected()) != len(Names())-1 {
		t.Errorf("a gateway expects %v", Expected())
	}
	var paths []string
	for _, v := range Views() {
		paths = append(paths, v.Path)
	}
	for _, p := range []string{"audit", "gateway", "gateway-authority", "llm-router", "policy", "policy-budget", "policy-starts"} {
		if !slices.Contains(paths, p) {
			t.Errorf("no view at %s", p)
		}
	}
}

func TestKindOf(t *testing.T) {
	for kind, want := range map[string]string{"tool.upper": "tools:call", "llm.chat": "llm:call", "judge.score": "judge:run", "policy.freeze": "policy:admin", "tenant.create": "cell:admin", "client.f": "tools:call"} {
		if k, ok := KindOf(kind); !ok || k.Scope != want || !strings.HasPrefix(kind, k.Prefix+".") || k.Callers != (k.Prefix == "client") {
			t.Errorf("%s belongs to %v, %v", kind, k, ok)
		}
	}
	if k, ok := KindOf("work.start"); !ok || k.Scope != "" {
		t.Errorf("work.start belongs to %v, %v; want a reserved family", k, ok)
	}
	for _, kind := range []string{"", "tool", "upper", "toolx.y", ".tool", "unknown.x"} {
		if k, ok := KindOf(kind); ok {
			t.Errorf("%q belongs to %v", kind, k)
		}
	}
	for _, k := range Kinds() {
		if k.Scope == "" {
			t.Errorf("%s has no scope and is listed among the kinds of which there are calls", k.Prefix)
		}
	}
}

// TestCopies shows that changing a returned slice does not change the registry, and that
// unknown services and views are not found. It also checks the name of an account.
func TestCopies(t *testing.T) {
	All()[0].Name = "changed"
	Names()[0] = "changed"
	Views()[0].Name = "changed"
	if s, ok := Get(Audit); !ok || s.Name != Audit || Names()[0] != Audit || Views()[0].Name != "audit.view" {
		t.Error("a caller can change the registry")
	}
	if _, ok := Get("unknown"); ok {
		t.Error("a service that does not exist is found")
	}
	if _, _, ok := ViewAt("unknown"); ok {
		t.Error("a view that does not exist is found")
	}
	if a := AccountOf(LLMRouter); a != "SVC_LLM_ROUTER" {
		t.Error(a)
	}
}
