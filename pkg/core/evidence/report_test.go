package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestLines checks lines of several lengths up to the limit, input that is not a
// sequence of lines, the result of last, and that a read error is returned.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", 300<<10)      // longer than the reader's buffer
	longest := strings.Repeat("y", MaxLine-1) // MaxLine bytes with its newline
	for name, c := range map[string]struct {
		in   string
		want []string
		err  string
	}{
		"nothing":          {"", nil, ""},
		"empty lines":      {"\n\n", []string{"", ""}, ""},
		"two":              {"a\nb\n", []string{"a", "b"}, ""},
		"long":             {"a\n" + long + "\nb\n", []string{"a", long, "b"}, ""},
		"the longest":      {longest + "\n", []string{longest}, ""},
		"too long":         {"a\n" + longest + "y\n", []string{"a"}, "a line of more than 16777216 bytes"},
		"not ended":        {"a\nb", []string{"a"}, "last line has no newline"},
		"long, not ended":  {long, nil, "last line has no newline"},
		"ends where it is": {"a\n", []string{"a"}, ""},
	} {
		l := newLineReader(strings.NewReader(c.in))
		var got []string
		var err error
		for {
			var b []byte
			if b, err = l.next(); err != nil {
				break
			}
			got = append(got, string(b))
		}
		if strings.Join(got, "|") != strings.Join(c.want, "|") || errors.Is(err, io.EOF) != (c.err == "") || c.err != "" && err.Error() != c.err {
			t.Errorf("%s: %d lines, %v; want %d, %q", name, len(got), err, len(c.want), c.err)
		}
	}
	l := newLineReader(strings.NewReader("a\nb\n"))
	for i, last := range []bool{false, true} {
		if _, err := l.next(); err != nil || l.last() != last {
			t.Errorf("line %d: last %v, %v", i+1, !last, err)
		}
	}
	lost := errors.New("lost")
	if _, err := newLineReader(iotest.ErrReader(lost)).next(); !errors.Is(err, lost) {
		t.Error(err)
	}
}

// TestExport truncates, extends and changes an exported ledger in different places, and
// checks the error of each verification. It also checks that an error of the Opener is
// returned.
func TestExport(t *testing.T) {
	w := bound(t, 2)
	src := w.source("s-a")
	body, trailer := joinLines(w.ledger), LedgerTrailer(string(src.Checkpoint))
	export := append(bytes.Clone(body), trailer...)
	line := func(i int, with []byte) []byte {
		all := append([][]byte(nil), w.ledger...)
		all[i] = with
		return append(joinLines(all), trailer...)
	}
	for name, c := range map[string]struct {
		in   []byte
		want string
	}{
		"as exported":          {export, ""},
		"nothing":              {nil, "not an exported ledger"},
		"events only":          {body, "the last line is not the checkpoint; the export is cut off"},
		"trailer only":         {trailer, "the trusted root " + w.root.KID + " is not published here"},
		"trailer first":        {append(bytes.Clone(trailer), body...), "line 1: a checkpoint that is not the last line"},
		"an event after":       {append(bytes.Clone(export), append(bytes.Clone(w.ledger[0]), '\n')...), "a checkpoint that is not the last line"},
		"no newline":           {export[:len(export)-1], "last line has no newline"},
		"trailer with more":    {append(bytes.Clone(body), []byte(`{"binnacle_checkpoint":"x","z":1}`+"\n")...), "the last line: json:"},
		"a line that is none":  {line(3, []byte("x")), "line 4: event: json:"},
		"a line too deep":      {line(3, []byte(`{"a":`+strings.Repeat("[", 200))), "line 4: event: json: nesting deeper than 128"},
		"an event too few":     {append(joinLines(w.ledger[:len(w.ledger)-1]), trailer...), "the lines do not have the checkpoint's root"},
		"data that is another": {line(3, bytes.Replace(w.ledger[3], []byte(`"algorithm":"ed25519"`), []byte(`"algorithm":5`), 1)), "data does not fit its schema"},
		"a signature changed":  {line(3, bytes.Replace(w.ledger[3], []byte(`"sig":"`), []byte(`"sig":"A`), 1)), "line 4: trust: key "},
	} {
		rep, err := VerifyLedger(c.in, w.root.KID)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || (rep == nil) != (err != nil) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	lost := errors.New("lost")
	reads := 0
	for fail := 1; fail <= 2; fail++ {
		reads = 0
		_, err := VerifyLedgerFrom(func() (io.ReadCloser, error) {
			if reads++; reads == fail {
				return nil, lost
			}
			return io.NopCloser(bytes.NewReader(export)), nil
		}, w.root.KID, Demands{})
		if !errors.Is(err, lost) {
			t.Errorf("opening %d times: %v", fail, err)
		}
	}
}

// TestFirstError shows that the error of the first line that fails is returned, even if
// a later line has the event id of an earlier one.
func TestFirstError(t *testing.T) {
	w := sample(t, 2)
	e := w.put("session-runner", contract.EventEffectStarted, "s-a", contract.Bytes(&contract.Started{CallID: "c-none", DecisionID: "d-c-none", IntentID: "i-c-none"}), nil)
	e.Session, e.CallID = "s-a", "c-none"
	w.store(e)
	first := len(w.ledger)
	w.store(e)
	_, err := VerifyLedger(append(joinLines(w.ledger), LedgerTrailer(string(w.source("s-a").Checkpoint))...), w.root.KID)
	if want := fmt.Sprintf("line %d: ", first); err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "its call was never proposed") {
		t.Errorf("%v, want that of %s", err, want)
	}
}

// TestReportTexts checks the text form of Report and LedgerReport.
func TestReportTexts(t *testing.T) {
	r := &Report{Tenant: "t", Session: "s", Origin: "log", TreeSize: 9, RootHash: "00", Events: 4, Decisions: 1, Receipts: 1, Tip: TipBound}
	const least = "VERIFIED session s of tenant t\n  log       log, tree size 9, root 00\n  events    4, each included in the log\n  decisions 1, signed by policy\n  receipts  1, one unbroken chain\n  tip       bound by checkpoint\n"
	if got := r.String(); got != least {
		t.Error(got)
	}
	r.Attested, r.Open, r.GrownFrom, r.Redacted, r.Erased = 1, 2, 3, 4, 5
	const more = "  attested  1 outcomes by the callers alone: no executor observed them\n  open      2 calls had no outcome when the checkpoint was taken\n  grown     from the checkpoint over 3 events\n" +
		"  redacted  4 events are shown without their payloads; only audit attests which leaf is theirs\n  erased    5 contents are erased or withheld; their commitments verify\n"
	if got := r.String(); got != least+more {
		t.Error(got)
	}
	l := &LedgerReport{Origin: "log", TreeSize: 9, RootHash: "00", Sessions: 2, Receipts: 3, Attested: 1, Open: 4, Tips: TipBound}
	const ledger = "VERIFIED ledger log\n  size      9 events, root 00\n  sessions  2, each chain unbroken\n  receipts  3, of them 1 attested by the callers alone\n  tips      their map, computed again, is the one that the checkpoint commits to\n  open      4 calls without an outcome yet\n"
	if got := l.String(); got != ledger {
		t.Error(got)
	}
	if l.Tips = TipAttested; !strings.Contains(l.String(), "  tips      the checkpoint commits to no map of them\n") {
		t.Error(l)
	}
}

// TestCounts compares the counts in a report with the session, and checks which lamport
// lines of a checkpoint are valid, and that no pack is built without events.
func TestCounts(t *testing.T) {
	w := bound(t, 4) // s-a has four calls: allowed, allowed with contents stored as objects, denied, allowed
	src := w.source("s-a")
	rep, err := Verify(build(t, src, w.keys["audit"]), w.root.KID)
	want := Report{Tenant: "t", Session: "s-a", Origin: "binnacle/test", TreeSize: int64(len(w.ledger)), RootHash: rep.RootHash, Events: 14, Decisions: 4, Receipts: 4, Tip: TipBound}
	if err != nil || *rep != want {
		t.Errorf("%+v, %v\nwant %+v", *rep, err, want)
	}
	if n, err := Lamport(&src.Head); err != nil || n != w.lamport {
		t.Error(n, err)
	}
	for _, ext := range [][]string{nil, {"lamport"}, {"lamport 0"}, {"lamport -1"}, {"lamport 01"}, {"lamport x"}, {"lamport 9007199254740992"}} {
		c := src.Head
		c.Extensions = ext
		if n, err := Lamport(&c); err == nil {
			t.Errorf("%q: lamport %d", ext, n)
		}
	}
	largest := src.Head
	largest.Extensions = []string{"lamport 9007199254740991"}
	if n, err := Lamport(&largest); err != nil || n != 9007199254740991 {
		t.Error(n, err)
	}
	src.Events = nil
	if _, err := bytesOf(src, w.keys["audit"]); err == nil || !strings.Contains(err.Error(), "has no events") {
		t.Error("a pack without events:", err)
	}
}
