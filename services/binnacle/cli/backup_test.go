package cli

import (
	"path/filepath"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// TestBackupKeys shows that a stopped mesh is opened with the keys in the folder that the
// option keys names.
func TestBackupKeys(t *testing.T) {
	dir := t.TempDir()
	o := backupOptions{keys: filepath.Join(dir, "elsewhere")}
	if _, err := keyring.Init(o.keys, "t"); err != nil {
		t.Fatal(err)
	}
	if err := private.Mkdir(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	o.fill(filepath.Join(dir, "data"))
	conn, stop, err := o.open(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	stop()
}
