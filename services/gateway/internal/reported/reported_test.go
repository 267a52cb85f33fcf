package reported_test

import (
	"context"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/reported"
)

// keys provides one content key, until erased is set.
type keys struct{ erased bool }

func (k *keys) Current(context.Context, string, string) (string, []byte, error) {
	return "k1", make([]byte, 32), nil
}

func (k *keys) Key(context.Context, string, string) ([]byte, error) {
	if k.erased {
		return nil, contract.ErrErased
	}
	return make([]byte, 32), nil
}

const (
	bare = `{"bytes":3,"files":[{"after":"sha256:b","before":"sha256:a","path":"/f","stated":true},{"path":"/g"}],"input_digest":"sha256:i","output_digest":"sha256:o"}`
	full = `{"bytes":3,"content":"SECRET","files":[{"after":"sha256:b","after_text":"SECRET","before":"sha256:a","before_text":"SECRET","path":"/f","stated":true},{"path":"/g"}],"input_digest":"sha256:i","output_digest":"sha256:o"}`
)

// TestModes checks what is stored of an output in each capture mode: with contents, without, with
// members of an unknown form, and of a kind that is not one of coding agents. In whichever mode an
// output was stored, Same returns true for it and false for another output.
func TestModes(t *testing.T) {
	for name, c := range map[string]struct{ kind, output, withheld string }{
		"contents":           {clientkind.Shell, full, bare},
		"none":               {clientkind.Shell, bare, bare},
		"texts alone":        {clientkind.FileEdit, `{"bytes":1,"files":[{"path":"/f","after_text":"SECRET"}]}`, `{"bytes":1,"files":[{"path":"/f"}]}`},
		"of an MCP server":   {clientkind.MCP("s", "t"), `{"content":"SECRET","output_digest":"d"}`, `{"output_digest":"d"}`},
		"of a late proposal": {clientkind.Shell, `{"ran_digest":"d","released":true}`, `{"ran_digest":"d","released":true}`},
		"other members":      {clientkind.Shell, `{"bytes":1,"Content":"SECRET","files":{"x":"SECRET"}}`, `{"bytes":1,"files":[]}`},
		"no object":          {clientkind.Shell, `["SECRET"]`, `{}`},
		"another kind":       {"tool.a", `{"content":"y"}`, `{"content":"y"}`},
		"args":               {"", `{"content":"y"}`, `{"content":"y"}`},
	} {
		for mode, want := range map[string]string{llm.CapturePlain: c.output, llm.CaptureEncrypted: c.output, llm.CaptureHashed: c.withheld, llm.CaptureOff: c.withheld} {
			now := mode
			s := &reported.Store{Blobs: &blob.Store{Tenant: "t", Keys: &keys{}}, Capture: func() string { return now }}
			content, err := s.Commit(t.Context(), "t", c.kind, "", []byte(c.output))
			if err != nil {
				t.Fatal(err)
			}
			if sealed := content.Encryption != nil; sealed != (mode == llm.CaptureEncrypted && c.output != c.withheld) {
				t.Errorf("%s, %s: encrypted: %v", name, mode, sealed)
			}
			if got, err := s.Blobs.Open(t.Context(), &content); err != nil || string(got) != want {
				t.Errorf("%s, %s: %s %v, want %s", name, mode, got, err, want)
			}
			for _, now = range []string{llm.CapturePlain, llm.CaptureHashed} {
				if same, err := s.Same(t.Context(), "t", c.kind, &content, []byte(c.output)); !same || err != nil {
					t.Errorf("%s, %s, then %s: not the same: %v", name, mode, now, err)
				}
				if same, err := s.Same(t.Context(), "t", c.kind, &content, []byte(`{"bytes":4}`)); same || err != nil {
					t.Errorf("%s, %s, then %s: another one is the same: %v", name, mode, now, err)
				}
			}
		}
	}
}

// TestNoKey checks that contents are not stored in mode encrypted without a key, and that Same
// returns true for an output whose key was destroyed.
func TestNoKey(t *testing.T) {
	k := &keys{}
	s := &reported.Store{Blobs: &blob.Store{Tenant: "t"}, Capture: func() string { return llm.CaptureEncrypted }}
	if _, err := s.Commit(t.Context(), "t", clientkind.Shell, "", []byte(full)); err == nil {
		t.Error("contents were stored without a key")
	}
	if _, err := s.Commit(t.Context(), "t", clientkind.Shell, "", []byte(bare)); err != nil {
		t.Error("digests need no key:", err)
	}
	s.Blobs.Keys = k
	content, err := s.Commit(t.Context(), "t", clientkind.Shell, "", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	k.erased = true
	if same, err := s.Same(t.Context(), "t", clientkind.Shell, &content, []byte(`{}`)); !same || err != nil {
		t.Error(same, err)
	}
}
