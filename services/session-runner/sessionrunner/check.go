package sessionrunner

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// Example is an example of a call in the manifest of a pack. Output is nil if the manifest
// states none. Invalid is the JSON pointer of a member of Input that violates the schema of the
// pack, and the keyword that it violates, or the error if Input cannot be encoded; it is "" if
// Input is valid.
type Example struct {
	About, Invalid string
	Input, Output  map[string]any
}

// Checked is a valid pack of a folder.
type Checked struct {
	Tool     contract.Tool
	Examples []Example
}

// CheckPacks reads the packs of a folder as the service does at its start, with the images of
// the lock files in the folders images and dir, and with the setting scripts of the service. It returns the valid packs, and an error for
// each other pack and for a folder that cannot be read. A pack whose program cannot run on
// this host without an image is not valid. If a lock file cannot be read, it returns only that
// error.
func CheckPacks(dir, images, scripts string) (valid []Checked, problems []error) {
	lock, err := pack.ReadLock(images, dir)
	if err != nil {
		return nil, []error{err}
	}
	packs, problems := pack.Discover(dir, lock, scripts)
	var checker toolschema.Checker
	for _, p := range packs {
		err := checker.Valid(&p.Tool)
		if problem := p.Program.Problem(); err == nil && p.Tool.Sandbox.Tier != "wasi" && problem != nil {
			err = problem
		}
		if err == nil && isHeld(p.Tool.Kind) {
			err = errors.New("a tool for held sandboxes has this name: rename the pack")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("pack %s: %w", p.Tool.Tool, err))
			continue
		}
		c := Checked{Tool: p.Tool}
		for _, e := range p.Examples {
			c.Examples = append(c.Examples, Example{About: e.About, Invalid: invalid(&checker, &p.Tool, e.Input), Input: e.Input, Output: e.Output})
		}
		valid = append(valid, c)
	}
	for _, p := range packs {
		_ = p.Program.Close() // fails if another pack with the same program has closed it
	}
	return valid, problems
}

// invalid returns the pointer and the keyword of a violation of a pack's schema by an input,
// or "" if there is none. If the input cannot be encoded, invalid returns the text of the
// error.
func invalid(checker *toolschema.Checker, t *contract.Tool, input map[string]any) string {
	raw, err := json.Marshal(input)
	if err != nil {
		return err.Error()
	}
	v := checker.Where(t, raw)
	if v.Keyword == "" {
		return ""
	}
	return v.Pointer + ": " + v.Keyword
}
