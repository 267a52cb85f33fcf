package evidence

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// insiders returns a ledger from which forge makes packs. If bind is set, its
// checkpoints commit to a map of tips; checkpoints of releases before 0.5 do not.
func insiders(t testing.TB, bind bool) *world {
	w := sample(t, 2)
	w.escalated(func(*escalation) {})
	w.bind = bind
	return w
}

// TestInsiders forges packs with the real keys of the services. A pack that is built in
// the same way without a change must verify. Of the forged packs, which are signed again
// after the changes, 2 % to 60 % must verify: otherwise the forgeries do not reach the
// last checks, or change nothing. If BINNACLE_NODE is the path of node, the second
// verifier must return the same verdict for each pack. BINNACLE_MUTANTS is the number of
// packs.
func TestInsiders(t *testing.T) {
	worlds := []*world{insiders(t, true), insiders(t, false)}
	for _, w := range worlds {
		for _, session := range []string{"s-a", "s-e"} {
			f := &forgery{w: w, session: session}
			for _, b := range w.ledger {
				f.ledger = append(f.ledger, tree(t, b))
			}
			f.build(nil)
			if _, err := Verify(f.seal(nil), w.root.KID); err != nil {
				t.Fatalf("bound %v, %s: an honest pack does not verify: %v", w.bind, session, err)
			}
		}
	}
	n := often(300, 20)
	if v := os.Getenv("BINNACLE_MUTANTS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	second := startSecond(t, worlds[0].root.KID)
	taken, differ := 0, 0
	for i := range n {
		pack, did := forge(worlds[i%2], i)
		_, err := Verify(pack, worlds[0].root.KID)
		if err == nil {
			taken++
		}
		if second == nil {
			continue
		}
		theirs := second.verify(t, pack)
		if theirs.OK != (err == nil) {
			if differ++; differ <= 20 {
				t.Errorf("mutant %d (%s): ours %v, theirs %v %s", i, did, err, theirs.OK, theirs.Error)
			}
		}
	}
	t.Logf("%d of %d mutants verify, on %d the verifiers differ", taken, n, differ)
	if taken*100 < n*2 || taken*100 > n*60 {
		t.Errorf("%d of %d mutants verify: the forger does not reach the last checks, or changes nothing", taken, n)
	}
}

// second is a running process of the second verifier, e2e/verifier.
type second struct {
	in  io.WriteCloser
	out *bufio.Reader
}

type verdict struct {
	OK    bool   `json:"ok"`
	Error string `json:"error"`
}

// startSecond starts the second verifier, or returns nil if BINNACLE_NODE is not set.
func startSecond(t *testing.T, root string) *second {
	node := os.Getenv("BINNACLE_NODE")
	if node == "" {
		return nil
	}
	cmd := exec.Command(node, "../../../e2e/verifier/verify.mjs", "--root", root, "--stdin")
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	return &second{in, bufio.NewReader(out)}
}

func (s *second) verify(t *testing.T, pack []byte) (v verdict) {
	t.Helper()
	_, err := s.in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(pack))), pack...))
	if err != nil {
		t.Fatal(err)
	}
	line, err := s.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}
