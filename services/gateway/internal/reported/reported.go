// Package reported stores the outputs that callers report for the calls that they execute themselves.
// If an output has contents that a coding agent's tool read or wrote, the capture mode determines how
// they are stored.
package reported

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

// Store stores reported outputs. Its fields are set before its first use; it is safe for concurrent
// use.
type Store struct {
	Blobs   *blob.Store
	Capture func() string // returns the capture mode in force
}

// Commit stores the output of a call as content of a tenant. If the contents of the call are
// encrypted, key is the id of their content key, under which the output is encrypted too; if that
// key was destroyed, only the commitment is returned. Otherwise key is "", and if kind, the kind of
// the call, is one of coding agents and the output has contents, it is stored encrypted in mode
// encrypted, and without the contents in modes hashed and off; its digests remain. The errors are
// those of blob.Store's Commit and CommitSealed.
func (s *Store) Commit(ctx context.Context, tenant, kind, key string, output []byte) (contract.Content, error) {
	const media = "application/json"
	blobs := s.Blobs.In(tenant)
	if key != "" {
		c, err := blobs.CommitSealed(ctx, blob.Under{KeyID: key}, output, media)
		if errors.Is(err, contract.ErrErased) {
			c, _ = blob.Withheld(output, media)
			err = nil
		}
		return c, err
	}
	bare, mode := withoutContents(kind, output), s.Capture()
	switch {
	case mode == llm.CapturePlain || bytes.Equal(bare, output):
		return blobs.Commit(ctx, output, media)
	case mode == llm.CaptureEncrypted:
		return blobs.CommitSealed(ctx, blob.Under{}, output, media)
	}
	return blobs.Commit(ctx, bare, media)
}

// Same reports whether a recorded output is what Commit stores for output in any of the modes. If
// the recorded output was erased, Same returns true. The error is that of reading the recorded
// output.
func (s *Store) Same(ctx context.Context, tenant, kind string, recorded *contract.Content, output []byte) (bool, error) {
	first, err := s.Blobs.In(tenant).Open(ctx, recorded)
	if errors.Is(err, contract.ErrErased) {
		return true, nil
	}
	return err == nil && (bytes.Equal(first, output) || bytes.Equal(first, withoutContents(kind, output))), err
}

// digests names the members of an output that are not contents, besides files, and ofFile those of
// an item of files; see the schema of outputs in pkg/clientkind.
var (
	digests = []string{"bytes", "input_digest", "output_digest", "ran_digest", "released"}
	ofFile  = []string{"path", "before", "after", "stated"}
)

// withoutContents returns an output of a coding agent's tool with only those members that are not
// contents, or {} if the output is not an object. It returns output itself if it has no others, or
// if kind is not one of coding agents.
func withoutContents(kind string, output []byte) []byte {
	if !strings.HasPrefix(kind, clientkind.Prefix) {
		return output
	}
	var doc map[string]json.RawMessage
	if json.Unmarshal(output, &doc) != nil {
		return []byte("{}")
	}
	bare, dropped := only(doc, digests)
	if raw, ok := doc["files"]; ok {
		var files []map[string]json.RawMessage
		if json.Unmarshal(raw, &files) != nil {
			files, dropped = nil, dropped+1
		}
		list := []map[string]json.RawMessage{}
		for _, f := range files {
			x, n := only(f, ofFile)
			list, dropped = append(list, x), dropped+n
		}
		b, err := json.Marshal(list)
		if err != nil {
			return []byte("{}")
		}
		bare["files"], dropped = b, dropped-1
	}
	if dropped == 0 {
		return output
	}
	b, err := json.Marshal(bare)
	if err != nil {
		return []byte("{}")
	}
	return b
}

// only returns the members of a document with the given names, and the number of the others.
func only(doc map[string]json.RawMessage, names []string) (out map[string]json.RawMessage, dropped int) {
	out = map[string]json.RawMessage{}
	for _, name := range names {
		if v, ok := doc[name]; ok {
			out[name] = v
		}
	}
	return out, len(doc) - len(out)
}
