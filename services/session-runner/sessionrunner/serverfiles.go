package sessionrunner

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// A command of an MCP server may have the proxy of the call that starts it, and files with secrets.
// The mcp-router requests both for the call, because the call runs there. It sends the secrets
// sealed to a key that this instance makes for the connection.

// secretFolder is a folder in memory of each held sandbox.
const secretFolder = "/tmp"

// maxSealed is the maximum number of bytes of the line with the sealed secrets.
const maxSealed = 1 << 20

// secretFiles are the files with secrets of a command. A nil value has none.
type secretFiles struct {
	files []mcprouter.File
	key   *seal.Key
	info  string
}

// filesOf returns the files that the settings of a server name, or nil.
func filesOf(cfg *mcprouter.ServerAdded) (*secretFiles, error) {
	if len(cfg.Files) == 0 {
		return nil, nil
	}
	for _, f := range cfg.Files {
		if !secret.ValidName(f.Secret) {
			return nil, rpc.Errorf(contract.CodeInvalidInput, "files: %q is not the name of a secret", f.Secret)
		}
	}
	return &secretFiles{files: cfg.Files}, nil
}

// path returns the path of the file with a secret.
func (*secretFiles) path(name string) string { return secretFolder + "/secret-" + name }

// open makes the key of a connection, and returns the line with its public part.
func (f *secretFiles) open(tenant, connection string) (line []byte, err error) {
	if f.key, err = seal.NewKey(); err != nil {
		return nil, err
	}
	f.info = secret.FilesInfo(tenant, connection)
	return []byte(f.key.Public() + "\n"), nil
}

// environment returns the variables with the paths of the files.
func (f *secretFiles) environment() (env []string) {
	if f != nil {
		for _, x := range f.files {
			env = append(env, x.Name+"="+f.path(x.Secret))
		}
	}
	return env
}

// facts returns the entries of the attestation for the files.
func (f *secretFiles) facts() (out []string) {
	if f != nil {
		for _, x := range f.files {
			out = append(out, "secret_file:"+x.Secret)
		}
	}
	return out
}

// write reads the line with the sealed secrets from the input of a command, and writes the files.
func (f *secretFiles) write(ctx context.Context, cmd *containerd.Command, b *box) error {
	if f == nil {
		return nil
	}
	in := bufio.NewReaderSize(cmd.Input, maxSealed)
	cmd.Input = in
	values, err := f.read(in)
	if err != nil {
		return fmt.Errorf("the secrets of the server's files: %w", err)
	}
	written := map[string]bool{}
	for _, x := range f.files {
		if written[x.Secret] {
			continue
		}
		written[x.Secret] = true
		if err := b.WriteSecret(ctx, f.path(x.Secret), []byte(values[x.Secret])); err != nil {
			return err
		}
	}
	return nil
}

// read returns the secrets by name. Errors contain no part of them.
func (f *secretFiles) read(in *bufio.Reader) (map[string]string, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return nil, errors.New("the connection ended before they arrived")
	}
	sealed, err := base64.StdEncoding.DecodeString(string(line[:len(line)-1]))
	if err != nil {
		return nil, errors.New("they are not base64")
	}
	plain, err := f.key.Open(f.info, sealed)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	var values map[string]string
	if json.Unmarshal(plain, &values) != nil {
		return nil, errors.New("they are malformed")
	}
	for _, x := range f.files {
		if _, ok := values[x.Secret]; !ok {
			return nil, fmt.Errorf("%s is missing", x.Secret)
		}
	}
	return values, nil
}

// proxyOf returns the proxy of the call that starts a server, or nil if the query names none. The
// server and the intent must permit hosts, and the socket must be that of the call's proxy.
func proxyOf(q *events.ServerStartRequest, cfg *mcprouter.ServerAdded, i *contract.ExecutionIntent) (*sandbox.Egress, error) {
	if q.EgressSocket == "" {
		return nil, nil
	}
	e := &sandbox.Egress{Socket: q.EgressSocket, CA: []byte(q.EgressAuthority)}
	switch {
	case len(cfg.Hosts) == 0 || len(netrule.OfIntent(i)) == 0:
		return nil, rpc.Errorf(contract.CodeDenied, "MCP server %s is not started: no host is permitted", q.Server)
	case !filepath.IsAbs(e.Socket) || filepath.Base(e.Socket) != egress.SocketName(q.CallID):
		return nil, rpc.Errorf(contract.CodeDenied, "MCP server %s is not started: the socket is not that of the call's proxy", q.Server)
	}
	if err := e.Check(); err != nil {
		return nil, rpc.Errorf(contract.CodeInvalidInput, "%v", err)
	}
	return e, nil
}
