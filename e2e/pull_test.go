package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
	"github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// pushed serves a registry, with TLS if ca is not nil, that has the image in an OCI
// archive under the name tools and the tag latest. It requires login, USER:PASSWORD, unless it is
// empty. It returns the registry's host and port.
func pushed(t *testing.T, archive, digest string, ca *certs.Authority, login string) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); login != "" && user+":"+password != login {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	if ca != nil {
		dir := t.TempDir()
		ca.Write(t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), "registry")
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		if err != nil {
			t.Fatal(err)
		}
		s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	put := func(method, path, kind string, body []byte) {
		r := httptest.NewRequest(method, path, bytes.NewReader(body))
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusCreated {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const manifest = "application/vnd.oci.image.manifest.v1+json"
	for in := tar.NewReader(f); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		id, isBlob := strings.CutPrefix(head.Name, "blobs/sha256/")
		if !isBlob {
			continue
		}
		body, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if "sha256:"+id == digest {
			put("PUT", "/v2/tools/manifests/latest", manifest, body)
			continue
		}
		put("POST", "/v2/tools/blobs/uploads/?digest=sha256:"+id, "application/octet-stream", body)
	}
	return s.Listener.Addr().String()
}

// TestImagePull shows with one process, and with one process per service and two
// session-runners, that an operator pulls an image by its digest from a registry whose
// certificate a configured authority signed, or on a loopback address without TLS;
// that after a pull by one session-runner both run packs in the image, and a held
// sandbox of it can be created; and that a registry that is not configured, one with
// another authority, a wrong or missing login, a wrong digest, a tag, a tenant's call, and a pull that the ceilings do not
// permit are refused. The bytes of each pull are in flows on the ledger.
func TestImagePull(t *testing.T) {
	archives, digest := shellImages(t)
	caFile := filepath.Join(t.TempDir(), "ca.crt")
	ca, other := certs.NewAuthority(t, caFile), certs.NewAuthority(t, filepath.Join(t.TempDir(), "other.crt"))
	archive := filepath.Join(archives, "shell.tar")
	secure, plain, foreign := pushed(t, archive, digest, ca, ""), pushed(t, archive, digest, nil, ""), pushed(t, archive, digest, other, "")
	const password = "tr0ub4dor-of-the-test"
	private := pushed(t, archive, digest, ca, "ann:"+password)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			o, _ := boxedOptions(t)
			o.Env = []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8", "BINNACLE_REGISTRY_CA=" + caFile, "BINNACLE_REGISTRIES=" + strings.Join([]string{secure, "http://" + plain, foreign, private}, ","), "BINNACLE_REGISTRY_SECRETS=" + private + "=registry.private"}
			m := start(t, o)
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
			}
			if _, err := m.CLI("image", "pull", secure+"/tools@"+digest); err == nil || !strings.Contains(err.Error(), "DATA_EGRESS_BLOCKED") {
				t.Errorf("a pull that the ceilings do not permit: %v", err)
			}
			cli(t, m, "trust", "sign", write(t, "p0.json", `{"egress":[{"host":"127.0.0.1"}]}`))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			for ref, want := range map[string]string{
				"127.0.0.1:1/tools@" + digest:                             "is not one of the registries",
				foreign + "/tools@" + digest:                              "certificate",
				secure + "/tools@sha256:" + strings.Repeat("0", 64):       "not found",
				secure + "/tools:latest":                                  "is named without a digest",
				"http://" + plain + "/tools@" + digest:                    "is not one of the registries",
				secure + "/tools@" + strings.TrimSuffix(digest, "0")[:60]: "has no digest after the @",
			} {
				if out, err := m.CLI("image", "pull", ref); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q, %v; want %s", ref, out, err, want)
				}
			}
			if _, err := m.CLI("image", "pull", "--unpinned", secure+"/tools:latest"); err == nil || !strings.Contains(err.Error(), "DENY_UNPINNED_IMAGE") {
				t.Errorf("a tag that the caller accepts: %v", err)
			}
			if r, err := m.Do(t.Context(), "POST", "/api/v1/calls", "s-tenant", `{"kind":"image.pull","tool":"image.pull","args":{"ref":"`+secure+`/tools@`+digest+`"}}`); err != nil || r.Status != 403 {
				t.Errorf("image.pull by a tenant: %v %+v", err, r)
			}
			if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.say", "s-pull", `{}`); err != nil || r.Status != 503 {
				t.Fatalf("the image is there already: %v %+v %s", err, r, r.Body)
			}
			if _, err := m.CLI("image", "pull", private+"/tools@"+digest); err == nil || !strings.Contains(err.Error(), "registry.private") {
				t.Errorf("a login that is not stored: %v", err)
			}
			for _, c := range [][2]string{{"no login", "want \"USER:PASSWORD\""}, {"ann:wrong-0ne-of-the-test", "requires a login"}, {`{"username":"ann","password":"` + password + `"}`}} {
				value, want := c[0], c[1]
				if out, err := m.Operator().CLIStdin(value, "secret", "put", "registry.private"); err != nil {
					t.Fatal(err, out)
				}
				out, err := m.CLI("image", "pull", private+"/tools@"+digest)
				if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "0ne")) {
					t.Errorf("%s: %q %v", value, out, err)
				}
			}
			cli(t, m, "image", "gc")
			for _, e := range ledger(t, m) {
				if strings.Contains(string(e.Data), password) {
					t.Errorf("%s contains the password", e.Name)
				}
			}
			from := map[string]string{"one": plain, "processes": secure}[name]
			if out := cli(t, m, "image", "pull", from+"/tools@"+digest, "--output", "json"); !strings.Contains(out, digest) {
				t.Fatal(out)
			}
			ran := map[string]bool{}
			eventually(t, "each session-runner has run the pack", time.Minute, func() bool {
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.say", "s-pull", `{}`)
				if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), `"image:`+digest+`"`) {
					t.Fatalf("%v %+v %s", err, r, r.Body)
				}
				var doc struct{ Instance string }
				if err := json.Unmarshal(r.Body, &doc); err != nil {
					t.Fatal(err)
				}
				ran[doc.Instance] = true
				return len(ran) == map[string]int{"one": 1, "processes": 2}[name]
			})
			id := strings.TrimSpace(cli(t, m, "sandbox", "create", "shell", "--session", "s-pull"))
			cli(t, m, "sandbox", "terminate", id)
			// containerd does not request a layer that another namespace has, so the size is not known.
			eventually(t, "the bytes of the pull are on the ledger", time.Minute, func() bool {
				var pulled int64
				for _, e := range ledger(t, m) {
					var f egressbroker.FlowEnded
					if e.Name == egressbroker.FlowEndedName && json.Unmarshal(e.Data, &f) == nil && net.JoinHostPort(f.Host, strconv.FormatInt(f.Port, 10)) == from {
						pulled += f.BytesIn
					}
				}
				return pulled > 0
			})
			cli(t, m, "replay")
		})
	}
}
