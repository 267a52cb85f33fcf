package rego

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
)

// algorithm is the only signature algorithm of bundles: Ed25519 (RFC 8037). The
// signature is in .signatures.json, in OPA's format.
const algorithm = "EdDSA"

// Build returns a bundle with the Rego and data files, given by path. If seed is not
// nil, it signs the bundle under the key id kid. The same arguments result in the same
// bytes. Build returns an error for files that do not form a bundle or that do not
// parse; Compile finds the other errors in the rules.
func Build(files map[string][]byte, kid string, seed []byte) ([]byte, error) {
	doc, err := tarball(files, kid, seed)
	if err != nil {
		return nil, err
	}
	if _, err := read(doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// tarball returns the gzipped tar archive of the files, with a manifest if they include
// none. If seed is not nil, the archive is signed.
func tarball(files map[string][]byte, kid string, seed []byte) ([]byte, error) {
	all := maps.Clone(files)
	if all[".manifest"] == nil {
		all[".manifest"] = []byte(`{"revision":"","roots":["binnacle"],"rego_version":1}`)
	}
	if seed != nil {
		sig, err := signatures(all, kid, seed)
		if err != nil {
			return nil, err
		}
		all[".signatures.json"] = sig
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if path.Clean("/"+name) != "/"+name {
			return nil, fmt.Errorf("bundle: path %q", name)
		}
		if err := t.WriteHeader(&tar.Header{Name: "/" + name, Mode: 0o644, Size: int64(len(all[name])), Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := t.Write(all[name]); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Files returns the files of a bundle by path. It returns an error for a bundle that is
// truncated or otherwise malformed, larger than MaxBundle, or larger than 4*MaxBundle
// when unpacked, for a path that occurs twice, and for a file that checkShape rejects.
func Files(doc []byte) (map[string][]byte, error) {
	if len(doc) > MaxBundle {
		return nil, fmt.Errorf("bundle: %d bytes, at most %d", len(doc), MaxBundle)
	}
	z, err := gzip.NewReader(bytes.NewReader(doc))
	if err != nil {
		return nil, fmt.Errorf("bundle: is not a gzipped tar: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(z, 4*MaxBundle+1))
	if err != nil {
		return nil, fmt.Errorf("bundle: is cut off or damaged: %w", err)
	}
	if len(raw) > 4*MaxBundle {
		return nil, fmt.Errorf("bundle: unpacks to more than %d bytes", 4*MaxBundle)
	}
	out := map[string][]byte{}
	for t := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("bundle: is cut off or damaged: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if out[name] != nil {
			return nil, fmt.Errorf("bundle: holds %s twice", name)
		}
		if out[name], err = io.ReadAll(t); err != nil {
			return nil, fmt.Errorf("bundle: is cut off or damaged: %w", err)
		}
		if err := checkShape(name, out[name]); err != nil {
			return nil, err
		}
	}
}

// signatures returns the content of .signatures.json for the files.
func signatures(files map[string][]byte, kid string, seed []byte) ([]byte, error) {
	hasher, err := bundle.NewSignatureHasher(bundle.HashingAlgorithm("SHA-256"))
	if err != nil {
		return nil, err
	}
	var infos []bundle.FileInfo
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var v any = files[name]
		if path.Ext(name) == ".json" || name == ".manifest" {
			if err := json.Unmarshal(files[name], &v); err != nil {
				return nil, fmt.Errorf("bundle: %s: %w", name, err)
			}
		}
		h, err := hasher.HashFile(v)
		if err != nil {
			return nil, err
		}
		infos = append(infos, bundle.NewFile(name, fmt.Sprintf("%x", h), "SHA-256"))
	}
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(seed))
	if err != nil {
		return nil, err
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	token, err := bundle.GenerateSignedToken(infos, bundle.NewSigningConfig(string(key), algorithm, ""), kid)
	if err != nil {
		return nil, fmt.Errorf("bundle: sign: %w", err)
	}
	return json.Marshal(bundle.SignaturesConfig{Signatures: []string{token}})
}

// ErrUnsigned is returned by Verify for a bundle without a signature. The caller must
// reject such a bundle if it requires a signature.
var ErrUnsigned = errors.New("bundle: is not signed")

// Verify verifies the signature of a bundle, and every file against it, with the
// key that the signature's header names. It returns the id of that key,
// ErrUnsigned for an unsigned bundle, or another error. key returns a public key
// by id.
func Verify(doc []byte, key func(kid string) (public []byte, err error)) (kid string, err error) {
	files, err := Files(doc)
	if err != nil {
		return "", err
	}
	var sc bundle.SignaturesConfig
	if files[".signatures.json"] == nil {
		return "", ErrUnsigned
	}
	if err := json.Unmarshal(files[".signatures.json"], &sc); err != nil || len(sc.Signatures) != 1 {
		return "", errors.New("bundle: .signatures.json: want exactly one signature")
	}
	kid, err = kidOf(sc.Signatures[0])
	if err != nil {
		return "", err
	}
	public, err := key(kid)
	if err != nil {
		return "", fmt.Errorf("bundle: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(ed25519.PublicKey(public))
	if err != nil {
		return "", err
	}
	vc := bundle.NewVerificationConfig(map[string]*bundle.KeyConfig{kid: {Key: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), Algorithm: algorithm}}, kid, "", nil)
	_, err = bundle.NewCustomReader(bundle.NewTarballLoaderWithBaseURL(bytes.NewReader(doc), "")).WithBundleVerificationConfig(vc).WithSizeLimitBytes(MaxBundle).Read()
	if err != nil {
		return "", fmt.Errorf("bundle: %w", err)
	}
	return kid, nil
}

var rawURL = base64.RawURLEncoding

// kidOf returns the key id in the header of a JWT. It returns an error if the header is
// malformed or names no key or another algorithm than EdDSA.
func kidOf(token string) (string, error) {
	head, _, ok := bytes.Cut([]byte(token), []byte("."))
	raw := make([]byte, len(head))
	n, err := rawURL.Decode(raw, head)
	if !ok || err != nil {
		return "", errors.New("bundle: its signature is not a JWT")
	}
	var h struct {
		KID string `json:"kid"`
		Alg string `json:"alg"`
	}
	if err := json.Unmarshal(raw[:n], &h); err != nil || h.Alg != algorithm || h.KID == "" {
		return "", fmt.Errorf("bundle: its signature names no key id, or another algorithm than %s", algorithm)
	}
	return h.KID, nil
}
