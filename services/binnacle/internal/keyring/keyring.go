// Package keyring makes and reads the keys of a mesh: files of mode 0600 in one folder.
// Init makes missing keys, and replaces an existing key only if it is a service's
// signing key that lacks a use.
package keyring

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Ring is an open folder of keys. Its methods read the files each time, so they return
// keys that another process has added. Two processes must not change a ring at the same
// time.
type Ring struct {
	Dir     string
	RootKID string // key id of the first root key, the trust anchor
}

// Names and suffixes of the ring's files and folders that more than one function uses,
// and the algorithm of the signing keys.
const (
	rootSeed  = "root.seed"
	rootKID   = "root.kid"
	p0File    = "p0.json"
	signEnd   = ".sign" // a service's signing key is <service>.sign
	nkeyEnd   = ".nkey" // an identity's NATS key is <identity>.nkey
	algorithm = "ed25519"

	sealAlgorithm = "x25519" // of the sealing key
)

// DefaultCeilings holds the ceilings (policy layer P0) of a new mesh.
var DefaultCeilings = guard.Ceilings{
	MaxCents:      10000,
	Sandbox:       contract.Sandbox{CPUMillis: 2000, MemoryMiB: 1024, OutputBytes: 16 << 20, Pids: 256, Tier: "process", WallMS: 120_000},
	StartWindowMS: 60_000,
}

// Init opens the ring in dir, which it creates if it is missing. If the ring is
// incomplete, Init makes the missing parts: the root key, the NATS identities of
// provision and the services, the keys of the services, their signed trust documents,
// which are for contract.CellTenant, the signed P0 ceilings, the document that opens the
// cell (see OpenCell) with the given original tenant, and that of the operator named
// Operator. In a complete ring, Init ignores tenant, and makes only missing NATS
// identities and, if the ring has the root seed, signing keys for services that have none
// or whose key lacks a use. The root seed may be removed from a complete ring. The error
// wraps ErrTenant if tenant is malformed or reserved.
func Init(dir, tenant string) (*Ring, error) {
	if err := errors.Join(private.Mkdir(dir), private.Check(dir)); err != nil {
		return nil, err
	}
	r := &Ring{Dir: dir}
	if b, err := os.ReadFile(r.Path(rootKID)); err == nil {
		r.RootKID = strings.TrimSpace(string(b))
		return r, complete(r)
	}
	if !contract.Token(tenant) || contract.Reserved(tenant) {
		return nil, fmt.Errorf("tenant %q: %w", tenant, ErrTenant)
	}
	seed, err := r.seed(rootSeed)
	if err != nil {
		return nil, err
	}
	root, err := sign.NewKey(seed)
	if err != nil {
		return nil, err
	}
	if err := Identities(r); err != nil {
		return nil, err
	}
	d := draft{r}
	signing, err := d.signing()
	if err != nil {
		return nil, err
	}
	sealing, err := d.sealing()
	if err != nil {
		return nil, err
	}
	if err := d.edge(); err != nil {
		return nil, err
	}
	docs := slices.Concat([]contract.TrustKey{publicDoc(root.Public(), services.Provision, algorithm, contract.CellTenant, contract.UseRoot)}, signing, sealing)
	for _, doc := range docs {
		if err := r.publish(root, doc); err != nil {
			return nil, err
		}
	}
	if err := r.write(p0File, guard.SignP0(root, DefaultCeilings)); err != nil {
		return nil, err
	}
	log, err := r.Log() // if an earlier release began to make the ring, its tenant is the log's name
	if err != nil {
		return nil, err
	}
	if log != contract.CellTenant {
		tenant = log
	}
	if _, err := openCell(r, log, tenant); err != nil {
		return nil, err
	}
	r.RootKID = root.KID
	return r, r.write(rootKID, []byte(root.KID+"\n")) // written last, since its presence means that the ring is complete
}

// Identities makes the missing NATS keys of provision and the services. The ring of an
// earlier release lacks those of services that were added since.
func Identities(r *Ring) error {
	for _, name := range append([]string{services.Provision}, services.Names()...) {
		if err := r.makeNKey(name); err != nil {
			return err
		}
	}
	return nil
}

// draft is a ring that Init is making.
type draft struct{ *Ring }

// signing returns the unsigned trust documents of the signing keys of all services that
// sign. It makes the keys that are missing.
func (d draft) signing() ([]contract.TrustKey, error) {
	var docs []contract.TrustKey
	for _, s := range services.Programs() {
		if len(s.Uses) == 0 {
			continue
		}
		seed, err := d.seed(s.Name + signEnd)
		if err != nil {
			return nil, err
		}
		k, err := sign.NewKey(seed)
		if err != nil {
			return nil, err
		}
		docs = append(docs, publicDoc(k.Public(), s.Name, algorithm, contract.CellTenant, s.Uses...))
	}
	return docs, nil
}

// sealing makes the vault-broker's two keys, unless they exist: the key that values are
// sealed to, whose unsigned trust document it returns, and the key that encrypts the
// vault's store.
func (d draft) sealing() ([]contract.TrustKey, error) {
	seed, err := d.seed(sealSeed)
	if err != nil {
		return nil, err
	}
	doc, err := sealingDoc(seed, contract.CellTenant)
	if err != nil {
		return nil, err
	}
	_, err = d.seed("vault.kek")
	return []contract.TrustKey{doc}, err
}

// edge makes the gateway's keys, unless they exist: the key of its webhook, and the
// token key, of which the gateway reads only the public half.
func (d draft) edge() error {
	if _, err := d.seed(webhookSeed); err != nil {
		return err
	}
	token, err := d.seed(tokenSeed)
	if err != nil {
		return err
	}
	public := ed25519.NewKeyFromSeed(token).Public().(ed25519.PublicKey)
	return d.write(tokenPublic, []byte(hex.EncodeToString(public)+"\n"))
}

// publicDoc returns the unsigned trust document of a public key.
func publicDoc(public []byte, owner, algorithm, tenant string, use ...string) contract.TrustKey {
	return contract.TrustKey{Algorithm: algorithm, KID: sign.KID(public), Owner: owner, PublicKey: base64.StdEncoding.EncodeToString(public), Tenant: tenant, Uses: use}
}

// Path returns the path of a file of the ring.
func (r *Ring) Path(name string) string { return filepath.Join(r.Dir, name) }

func (r *Ring) write(name string, b []byte) error {
	return private.Write(r.Path(name), b)
}

// seed returns the 32 bytes that a file holds in hex. If the file does not exist, seed
// creates it with random bytes.
func (r *Ring) seed(name string) ([]byte, error) {
	b, err := r.Seed(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	b = make([]byte, 32)
	rand.Read(b)
	return b, r.write(name, []byte(hex.EncodeToString(b)+"\n"))
}

// Seed returns the 32 bytes in the first line of a file of the ring, which holds them in hex.
func (r *Ring) Seed(name string) ([]byte, error) { return ReadSeed(r.Path(name)) }

// ReadSeed returns the 32 bytes in the first line of a file, which holds them in hex.
func ReadSeed(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return run.ParseSeed(path, string(raw))
}

// ClusterSecret returns the secret, in hex, by which the NATS servers of a cluster
// authenticate each other. It makes the secret if the ring has none.
func (r *Ring) ClusterSecret() (string, error) {
	b, err := r.seed("cluster.secret")
	return hex.EncodeToString(b), err
}

// MirrorNKeys makes the missing NATS identities of the mirrors' account: "mirror", which
// creates the mirrors, and "auditor", which reads them.
func (r *Ring) MirrorNKeys() error {
	for _, name := range []string{bus.MirrorKeeper, bus.MirrorAuditor} {
		if err := r.makeNKey(name); err != nil {
			return err
		}
	}
	return nil
}

// makeNKey makes the NATS key of an identity, unless the ring has it.
func (r *Ring) makeNKey(service string) error {
	if _, err := r.NKey(service); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	kp, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	b, err := kp.Seed()
	if err != nil {
		return err
	}
	return r.write(service+nkeyEnd, append(b, '\n'))
}

// NKey returns the seed of an identity's NATS key.
func (r *Ring) NKey(service string) ([]byte, error) {
	b, err := os.ReadFile(r.Path(service + nkeyEnd))
	return []byte(strings.TrimSpace(string(b))), err
}

// NKeyPublic returns the public key of an identity's NATS key.
func (r *Ring) NKeyPublic(service string) (string, error) {
	seed, err := r.NKey(service)
	if err != nil {
		return "", err
	}
	kp, err := nkeys.FromSeed(seed)
	if err != nil {
		return "", err
	}
	return kp.PublicKey()
}

// trustDir is the folder of the signed trust documents, one file each, whose names begin
// with numbers in the order of publication. It is a folder because a folder that is
// mounted into a container can still receive new files.
const trustDir = "trust"

// publish signs a trust document with the root key and adds it to the ring.
func (r *Ring) publish(root *sign.Key, k contract.TrustKey) error {
	if err := private.Mkdir(r.Path(trustDir)); err != nil {
		return err
	}
	old, err := os.ReadDir(r.Path(trustDir))
	if err != nil {
		return err
	}
	signed := trust.Publish(root, k)
	name := fmt.Sprintf("%s/%04d-%s.json", trustDir, len(old)+1, k.KID)
	return r.write(name, contract.Bytes(&signed))
}

// Trust returns the signed trust documents in the order of publication, or an error if
// there are none. It does not verify the signatures. Release 0.1 stored the documents in
// the file trust.jsonl; the documents in that file come first.
func (r *Ring) Trust() ([]contract.TrustKey, error) {
	files, err := filepath.Glob(r.Path(trustDir + "/*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	if _, err := os.Stat(r.Path("trust.jsonl")); err == nil {
		files = append([]string{r.Path("trust.jsonl")}, files...)
	}
	var out []contract.TrustKey
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(raw) {
			var k contract.TrustKey
			if err := contract.Decode(bytes.TrimSpace(line), &k); err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Base(f), err)
			}
			out = append(out, k)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no trust documents in %s", r.Path(trustDir))
	}
	return out, nil
}

// Open opens a ring that Init made. It returns an error if the folder has no root.kid, or
// if private.Check returns an error.
func Open(dir string) (*Ring, error) {
	b, err := os.ReadFile(filepath.Join(dir, rootKID))
	if err != nil {
		return nil, fmt.Errorf("no keys here: %w; `binnacle init` makes them", err)
	}
	return &Ring{Dir: dir, RootKID: strings.TrimSpace(string(b))}, private.Check(dir)
}
