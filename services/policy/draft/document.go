package draft

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// Document is a policy document of a layer (p0, p1 or p2), with a name of its own.
type Document struct {
	Layer      string
	Name       string
	Precedence int64
	Body       []byte
}

// Read reads a policy document from a file or folder: a bundle
// (.tar.gz, .rego, or a folder of Rego and data), an overlay (.json with a
// scope), or ceilings (.json, signed or not).
func Read(path string) (*Document, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
	switch {
	case info.IsDir(), strings.HasSuffix(path, ".rego"):
		b, err := Build(path, "", nil)
		return &Document{Layer: "p1", Name: strings.TrimSuffix(name, ".rego"), Precedence: 500, Body: b}, err
	case strings.HasSuffix(path, ".tar.gz"):
		b, err := os.ReadFile(path)
		return &Document{Layer: "p1", Name: name, Precedence: 500, Body: b}, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	body, err := canon.Transform(nil, raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var peek map[string]json.RawMessage
	if err := json.Unmarshal(body, &peek); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if peek["scope"] != nil {
		var o guard.Overlay
		if err := contract.Decode(body, &o); err != nil {
			return nil, fmt.Errorf("%s: overlay: %w", path, err)
		}
		return &Document{Layer: "p2", Name: o.ID, Body: body}, nil
	}
	return &Document{Layer: "p0", Body: body}, nil
}

// Build packs the Rego and data files of a folder into a bundle, signed with the
// seed of an Ed25519 key under the key id kid; a nil seed leaves it unsigned. Files
// that end in _test.rego stay outside.
func Build(path, kid string, seed []byte) ([]byte, error) {
	files, err := bundleFiles(path, false)
	if err != nil {
		return nil, err
	}
	return rego.Build(files, kid, seed)
}

func bundleFiles(path string, tests bool) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		base := filepath.Base(p)
		if !(strings.HasSuffix(base, ".rego") && (tests || !strings.HasSuffix(base, "_test.rego")) || base == "data.json" || base == ".manifest") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		if rel == "." {
			rel = base
		}
		files[filepath.ToSlash(rel)] = b
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s holds no .rego file", path)
	}
	return files, err
}
