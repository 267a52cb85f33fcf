package sessionrunner

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
)

// Kinds of the calls that manage images. Each concerns the instance that executes it.
const (
	kindImageGC     = "image.gc"
	kindImageImport = "image.import"
	kindImageList   = "image.list"
	kindImagePull   = "image.pull"
)

// imageOutput is the schema of the output of each kind of call.
const imageOutput = `{"properties":{"images":{"items":{"properties":{"created":{"type":"string"},"digest":{"type":"string"},"name":{"type":"string"},"size":{"type":"integer"},"tools":{"items":{"type":"string"},"type":"array"}},"required":["created","digest","size","tools"],"type":"object"},"type":"array"},"instance":{"type":"string"}},"required":["images","instance"],"type":"object"}`

// imageTools are registered where tier container is available.
var imageTools = []contract.Tool{
	{Description: "Removes the images that neither a pack of the session-runner nor a held sandbox uses from containerd's store. With dry_run it only lists them.", Class: "E2", Executor: services.SessionRunner, Kind: kindImageGC, Tool: kindImageGC, Version: "v1", Rerunnable: true,
		InputSchema: contract.Raw(`{"additionalProperties":false,"properties":{"dry_run":{"type":"boolean"}},"type":"object"}`), OutputSchema: contract.Raw(imageOutput)},
	{Description: "Imports the images of an archive in the session-runner's folder of images into containerd's store.", Class: "E1", Executor: services.SessionRunner, Kind: kindImageImport, Tool: kindImageImport, Version: "v1", Rerunnable: true,
		InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"archive":{"maxLength":255,"minLength":1,"type":"string"},"digest":{"pattern":"^sha256:[0-9a-f]{64}$","type":"string"}},"required":["archive"],"type":"object"}`),
		OutputSchema: contract.Raw(imageOutput)},
	{Description: "Lists the images in containerd's store and the packs that use them.", Class: "E0", Executor: services.SessionRunner, Kind: kindImageList, Tool: kindImageList, Version: "v1", Rerunnable: true,
		InputSchema: contract.Raw(`{"additionalProperties":false,"type":"object"}`), OutputSchema: contract.Raw(imageOutput)},
	{Description: "Pulls an image by its digest from a registry of session-runner.registries into containerd's store.", Class: "E1", Executor: services.SessionRunner, Kind: kindImagePull, Tool: kindImagePull, Version: "v1", Rerunnable: true,
		InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"ref":{"description":"HOST/NAME@sha256:DIGEST","maxLength":500,"minLength":1,"type":"string"},"unpinned":{"default":false,"description":"ref may be HOST/NAME:TAG, whose bytes may change","type":"boolean"}},"required":["ref"],"type":"object"}`),
		OutputSchema: contract.Raw(imageOutput)},
}

// imageArgs are the arguments of the calls that manage images.
type imageArgs struct {
	Archive string `json:"archive"`
	Digest  string `json:"digest"`
	DryRun  bool   `json:"dry_run"`
	Ref     string `json:"ref"`

	Unpinned bool `json:"unpinned"`
}

// listedImage is an image in the output of a call.
type listedImage struct {
	containerd.Image
	Tools []string `json:"tools"` // packs of this instance that run in the image, sorted
}

// manageImages executes a call that manages images. Its output names the instance,
// because each instance has a store of its own.
func (s *Service) manageImages(ctx context.Context, w *execute.Work) execute.Result {
	if s.images == nil {
		return execute.Fail(contract.CodeSandboxUnavailable, "images require tier container: configure a containerd socket (BINNACLE_CONTAINERD) on the session-runner")
	}
	var args imageArgs
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	var images []containerd.Image
	var usage *contract.Usage
	var err error
	switch w.Call.Kind {
	case kindImageImport:
		images, err = s.images.Import(ctx, args.Archive, args.Digest)
	case kindImagePull:
		images, usage = make([]containerd.Image, 1), &contract.Usage{}
		images[0], *usage, err = pull(ctx, s, w, &args)
	case kindImageGC:
		images, err = s.collectImages(ctx, args.DryRun)
	default:
		images, err = s.images.Images(ctx)
	}
	if err != nil {
		res := failedImages(w.Call.Kind, err)
		res.Usage = usage
		return res
	}
	out := make([]listedImage, len(images))
	for i, img := range images {
		out[i] = listedImage{Image: img, Tools: s.users(img.Digest)}
	}
	body, err := json.Marshal(map[string]any{"images": out, "instance": w.Instance})
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	return execute.Result{Output: body, Usage: usage}
}

// failedImages returns the result of a call of a kind that failed with err.
func failedImages(kind string, err error) execute.Result {
	denied := (*containerd.DeniedError)(nil)
	switch {
	case errors.Is(err, containerd.ErrUnpinned):
		return execute.Fail(contract.CodeImageUnpinned, "%v; or call with \"unpinned\": true, if policy allows it", err)
	case errors.Is(err, containerd.ErrReference):
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	case errors.Is(err, errNoSecret):
		return execute.Refused(err)
	case errors.Is(err, containerd.ErrLogin), errors.Is(err, errLogin):
		return execute.Fail(contract.CodeCredentialInvalid, "%s: %v; session-runner.registry_secrets names the secrets with logins", kind, err)
	case errors.Is(err, errNoEgress), errors.As(err, &denied):
		return execute.Fail(contract.CodeEgressRefused, "%s: %v", kind, err)
	}
	return execute.Fail(contract.CodeHandlerFailed, "%s: %v", kind, err)
}

// collectImages removes the images that neither a pack nor a held sandbox uses or, with dry, lists
// them.
func (s *Service) collectImages(ctx context.Context, dry bool) ([]containerd.Image, error) {
	used := s.used()
	images, err := s.images.GC(ctx, used, dry)
	if err != nil || s.held == nil || s.held.runner == nil {
		return images, err
	}
	more, err := s.held.runner.GC(ctx, used, dry)
	for _, img := range more {
		if !slices.ContainsFunc(images, func(x containerd.Image) bool { return x.Digest == img.Digest }) {
			images = append(images, img)
		}
	}
	return images, err
}

// users returns the names of the packs that run in the image with the given digest.
func (s *Service) users(digest string) []string {
	out := []string{}
	for _, p := range s.packs.all() {
		if p.Tool.Image == digest {
			out = append(out, p.Tool.Tool)
		}
	}
	return out
}

// used returns the digests of the packs' images and programs.
func (s *Service) used() map[string]bool {
	out := map[string]bool{}
	for _, p := range s.packs.all() {
		out[p.Tool.Image], out[p.Tool.Pack] = true, true
	}
	return out
}

// rerunnable reports whether a call of the kind may run again after a crash.
func (s *Service) rerunnable(kind string) bool {
	t := s.packs.document(kind)
	return isImageKind(kind) || isPackKind(kind) || t != nil && t.Rerunnable
}

func isImageKind(kind string) bool {
	return slices.ContainsFunc(imageTools, func(t contract.Tool) bool { return t.Kind == kind })
}

// unavailable returns the result of a call whose sandbox could not be made or operated.
func unavailable(tool, tier string, err error) execute.Result {
	if missing := (*containerd.MissingImage)(nil); errors.As(err, &missing) {
		return execute.Fail(contract.CodeImageMissing, "%s cannot run: %v", tool, missing)
	}
	if containerd.Unavailable(err) {
		return execute.Fail(contract.CodeSandboxUnavailable, "%s cannot run in tier %s: %v", tool, tier, err)
	}
	return execute.Fail(contract.CodeSandboxFailed, "the sandbox could not be made in tier %s: %v", tier, err)
}
