package keyring

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// TestReplace shows that each key that can be replaced has two valid keys until the former one is
// retired, that it cannot be replaced again before, and that nothing is retired that was not
// replaced.
func TestReplace(t *testing.T) {
	r, err := Init(t.TempDir(), "default")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.MirrorNKeys(); err != nil {
		t.Fatal(err)
	}
	for _, name := range Replaceable() {
		if name == NATSKey {
			continue
		}
		if err := Retire(r, name); err == nil || !strings.Contains(err.Error(), "no former key") {
			t.Errorf("%s was retired before it was replaced: %v", name, err)
		}
		if _, err := Replace(r, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Replace(r, name); err == nil || !strings.Contains(err.Error(), "trust retire "+name) {
			t.Errorf("%s was replaced twice: %v", name, err)
		}
	}
	for _, file := range []string{tokenPublic, webhookSeed, sealSeed} {
		if b, err := os.ReadFile(r.Path(file)); err != nil || bytes.Count(b, []byte("\n")) != 2 {
			t.Errorf("%s: %s %v", file, b, err)
		}
	}
	if former, err := FormerNKeys(r); err != nil || len(former) != len(services.Names())+3 || former[bus.MirrorAuditor] == "" {
		t.Error(former, err)
	}
	if _, err := Replace(r, NATSKey); err == nil || !strings.Contains(err.Error(), "trust retire nats") {
		t.Error("all NATS identities were replaced twice:", err)
	}
	for _, name := range []string{NATSKey, SealingKey, TokenKey, WebhookKey} {
		if err := Retire(r, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := Retire(r, name); err == nil {
			t.Errorf("%s was retired twice", name)
		}
	}
	docs, err := r.Trust()
	if err != nil {
		t.Fatal(err)
	}
	valid := 0
	for _, d := range docs {
		if len(d.Uses) == 1 && d.Uses[0] == contract.UseSeal {
			if valid++; d.Revoked {
				valid -= 2
			}
		}
	}
	if valid != 1 {
		t.Errorf("%d valid sealing keys", valid)
	}
	before, err := r.NKey(services.Policy)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := Replace(r, NATSKey); err != nil || id != NATSKey {
		t.Error(id, err)
	}
	if after, err := r.NKey(services.Policy); err != nil || bytes.Equal(before, after) {
		t.Error("policy has its former identity", err)
	}
	for _, name := range []string{"nats/none", "policy", ""} {
		if _, err := Replace(r, name); err == nil {
			t.Errorf("%q was replaced", name)
		}
		if err := Retire(r, name); err == nil {
			t.Errorf("%q was retired", name)
		}
	}
}
