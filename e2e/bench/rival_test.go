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
	var list []contender
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
		prev, i := "GENESIS", 0
		mode := map[string]string{"NORMAL": "process", "FULL": "power"}[sync]
		list = append(list, contender{name: "synchronous " + sync, durability: mode, used: usedBySelf, call: func(int) (time.Duration, error) {
			began := time.Now()
			i++
			d, err := json.Marshal(map[string]any{"id": fmt.Sprint("dec-", i), "verdict": "ALLOW", "reason_code": "RULE_TEN", "subject_id": "alice", "action": "tool.noop"})
			if err != nil {
				return 0, err
			}
			r, err := json.Marshal(map[string]any{"receipt_id": fmt.Sprint("rcpt-", i), "decision": hex.EncodeToString(ed25519.Sign(key, d)), "prev": prev})
			if err != nil {
				return 0, err
			}
			prev = hex.EncodeToString(ed25519.Sign(key, r))
			_, err = insert.Exec(fmt.Sprint("rcpt-", i), "s-1", prev, string(r), prev)
			return time.Since(began), err
		}})
	}
	compare(t, "rival: two signatures and SQLite, WAL", 1, span/4, list)
}

// usedBySelf returns the CPU time and the resident memory of this process.
func usedBySelf(t *testing.T) (time.Duration, int64) { return usedByProcess(t, os.Getpid(), false) }

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
