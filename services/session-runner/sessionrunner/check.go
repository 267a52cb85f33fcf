package sessionrunner

import (
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// CheckPacks reads the packs of a folder as the service does at its start, with the images
// of the lock files in the folders images and dir. It returns the tool documents of the
// valid packs, and an error for each other one and for each program that cannot run on this
// host without an image.
func CheckPacks(dir, images string) (tools []contract.Tool, problems []error) {
	lock, err := pack.ReadLock(images, dir)
	if err != nil {
		return nil, []error{err}
	}
	packs, problems := pack.Discover(dir, lock)
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
		tools = append(tools, p.Tool)
	}
	for _, p := range packs {
		_ = p.Program.Close() // of memory, which packs may share
	}
	return tools, problems
}
