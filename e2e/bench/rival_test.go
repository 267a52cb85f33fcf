//go:build bench

package bench

import (
	"crypto/ed25519"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

// rival measures, for comparison, a decision that is recorded without a server: two
// Ed25519 signatures, over the decision and the receipt, and an insert of the receipt
// into an in-process SQLite file.
func rival(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sync := range []string{"NORMAL", "FULL"} {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "r.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous("+sync+")")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(1)
		if _, err := db.Exec("create table receipts (id text primary key, session text, prev text, body text, sig text)"); err != nil {
			t.Fatal(err)
		}
		insert, err := db.Prepare("insert into receipts values (?,?,?,?,?)")
		if err != nil {
			t.Fatal(err)
		}
		prev := "GENESIS"
		var took []time.Duration
		for i := range 2000 {
			began := time.Now()
			d, err := json.Marshal(map[string]any{"id": fmt.Sprint("dec-", i), "verdict": "ALLOW", "reason_code": "RULE_TEN", "subject_id": "alice", "action": "tool.noop"})
			if err != nil {
				t.Fatal(err)
			}
			r, err := json.Marshal(map[string]any{"receipt_id": fmt.Sprint("rcpt-", i), "decision": hex.EncodeToString(ed25519.Sign(key, d)), "prev": prev})
			if err != nil {
				t.Fatal(err)
			}
			prev = hex.EncodeToString(ed25519.Sign(key, r))
			if _, err := insert.Exec(fmt.Sprint("rcpt-", i), "s-1", prev, string(r), prev); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		mode := map[string]string{"NORMAL": "process", "FULL": "power"}[sync]
		add(row{Name: "rival: two signatures and SQLite, WAL, synchronous " + sync, Durability: mode, Clients: 1, P50us: us(took, .5), P99us: us(took, .99)})
	}
}

// decisions adds the results of the policy service's benchmark, which is run in that
// service's module because it needs internal packages.
func decisions(t *testing.T) {
	file := os.Getenv("BENCH_ROWS")
	if file == "" {
		t.Fatal("BENCH_ROWS names no file; run `make bench`")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var own []row
	if err := json.Unmarshal(b, &own); err != nil {
		t.Fatal(err)
	}
	for _, r := range own {
		add(r)
	}
}
