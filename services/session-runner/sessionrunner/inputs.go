package sessionrunner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	queries "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// artifactsMember is the member of a pack's input that contains the content of the artifacts that
// the arguments name, in base64 by argument. Calls of a pack whose manifest has artifact_inputs must
// not have an argument of this name, in upper or lower case.
const artifactsMember = "_artifacts"

// attach returns stdin, the document for the pack's standard input, with the member artifactsMember:
// the content of the artifacts whose ids are the arguments that artifact_inputs lists. It returns
// stdin itself if the call has none of these arguments. The digest of the arguments covers the ids,
// which are digests of the content. If an artifact is not the caller's, is larger than the manifest
// permits or cannot be read, the result has an error code.
func attach(ctx context.Context, env *run.Env, w *execute.Work, p *pack.Pack, stdin []byte) ([]byte, execute.Result) {
	if len(p.Inputs) == 0 {
		return stdin, execute.Result{}
	}
	var args map[string]json.RawMessage
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return nil, execute.Fail(contract.CodeInvalidInput, "the arguments are not one JSON object: %v", err)
	}
	for name := range args {
		if strings.EqualFold(name, artifactsMember) {
			return nil, execute.Fail(contract.CodeInvalidInput, "arguments: the member %s is reserved for the content of artifacts: remove it", name)
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `{"%s":{`, artifactsMember)
	empty := out.Len()
	for _, in := range p.Inputs {
		raw, given := args[in.Member]
		if !given {
			continue
		}
		var id string
		if err := json.Unmarshal(raw, &id); err != nil || artifact.DigestOf(id) == "" {
			return nil, execute.Fail(contract.CodeInvalidInput, "%s: want the id of an artifact, ar- and 64 hex digits", in.Member)
		}
		if out.Len() > empty {
			out.WriteByte(',')
		}
		name, err := json.Marshal(in.Member)
		if err != nil {
			return nil, execute.Fail(contract.CodeInternal, "%v", err)
		}
		out.Write(name)
		out.WriteString(`:"`)
		if res := content(ctx, env, w, in, id, &out); res.ErrorCode != "" {
			return nil, res
		}
		out.WriteByte('"')
	}
	if out.Len() == empty {
		return stdin, execute.Result{}
	}
	out.WriteString("},")
	out.Write(bytes.TrimSpace(stdin)[1:]) // it has at least the member of the last artifact
	return out.Bytes(), execute.Result{}
}

// content appends the content of an artifact that the caller owns to out, in base64. It compares
// the content with the digest in the id.
func content(ctx context.Context, env *run.Env, w *execute.Work, in pack.Input, id string, out *bytes.Buffer) execute.Result {
	found, err := rpc.Do(ctx, env.Queries.In(w.Event.Tenant), queries.ArtifactInfoQuery, queries.ArtifactInfoRequest{Artifact: id, Owner: w.Event.Actor})
	switch {
	case rpc.CodeOf(err) == contract.CodeNotFound:
		return execute.Fail(contract.CodeInvalidInput, "%s: no artifact of the caller has this id", in.Member)
	case err != nil:
		return execute.Fail(contract.CodeArtifactFailed, "%s: the artifact cannot be found now: %v", in.Member, err)
	}
	a := found.Value
	if a.Size > in.MaxBytes {
		return execute.Fail(contract.CodeInvalidInput, "%s: the artifact has %d bytes, and the pack accepts %d", in.Member, a.Size, in.MaxBytes)
	}
	o := artifact.Object{Tenant: w.Event.Tenant, Service: a.Service, Upload: a.Upload, Size: a.Size, Digest: artifact.DigestOf(id), Index: a.Index}
	r, err := artifact.Open(ctx, artifact.Stream{Conn: env.Conn}, o)
	if errors.Is(err, artifact.ErrNotFound) {
		return execute.Fail(contract.CodeArtifactFailed, "%s: the content of the artifact is not in the stream ARTIFACTS: it was removed, or it is in S3, which packs cannot read", in.Member)
	}
	if err != nil {
		return execute.Fail(contract.CodeArtifactFailed, "%s: the artifact cannot be read: %v", in.Member, err)
	}
	defer r.Close()
	sum, enc := sha256.New(), base64.NewEncoder(base64.StdEncoding, out)
	out.Grow(base64.StdEncoding.EncodedLen(int(a.Size)) + 1<<10)
	if _, err := io.Copy(io.MultiWriter(sum, enc), r); err != nil {
		return execute.Fail(contract.CodeArtifactFailed, "%s: the artifact cannot be read: %v", in.Member, err)
	}
	if err := enc.Close(); err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	if "sha256:"+hex.EncodeToString(sum.Sum(nil)) != o.Digest {
		return execute.Fail(contract.CodeArtifactFailed, "%s: %v", in.Member, artifact.ErrCorrupt)
	}
	return execute.Result{}
}
