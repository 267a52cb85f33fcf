package vaultbroker

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// TestRepeat shows that the keys which a list of erasures names are destroyed, those of other owners are not,
// that keys made afterwards stay when the list was executed, that a key which does not exist is ignored, and
// that a damaged list is an error that names its file.
func TestRepeat(t *testing.T) {
	dir := t.TempDir()
	_, content, err := openStores(dir, make([]byte, 32), "t")
	if err != nil {
		t.Fatal(err)
	}
	c := &contentKeeper{env: &run.Env{Log: slog.New(slog.DiscardHandler)}, store: content.Backend()}
	pseudonyms := map[string]string{}
	count := func(tenant, subject string) int {
		t.Helper()
		k, err := c.contentKeysFor(t.Context(), tenant, &query.ContentKeysRequest{Pseudonym: pseudonyms[tenant+subject]})
		if err != nil {
			t.Fatal(err)
		}
		return len(k.Keys)
	}
	for _, of := range [][2]string{{"t", "ann"}, {"t", "bob"}, {"u", "ann"}} {
		k, err := c.contentKeysFor(t.Context(), of[0], &query.ContentKeysRequest{Subject: of[1]})
		if err != nil || len(k.Keys) != 1 {
			t.Fatal(k, err)
		}
		pseudonyms[of[0]+of[1]] = k.Pseudonym
	}
	for _, tenant := range []string{"t", "v"} {
		if _, err := c.contentKeysFor(t.Context(), tenant, &query.ContentKeysRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	list := []Erasure{{Tenant: "t", Subject: pseudonyms["tann"]}, {Tenant: "v", Key: "tk-000001"}, {Tenant: "v", Key: "tk-000009"}, {Tenant: "u"}}
	if err := RepeatErasures(dir, list); err != nil {
		t.Fatal(err)
	}
	for range 2 { // nothing is left to repeat
		if err := c.repeat(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		if count("t", "ann") != 0 || count("u", "ann") != 0 || count("t", "bob") != 1 {
			t.Error("other keys were destroyed than those of the list")
		}
		k, err := c.contentKeysFor(t.Context(), "v", &query.ContentKeysRequest{}) // makes a new key
		if err != nil || len(k.Keys) != 1 || k.Current != "tk-000002" {
			t.Error(k.Current, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, repeatFile), []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.repeat(t.Context(), dir); err == nil {
		t.Error("a damaged list was accepted")
	}
}
