package egressbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

// through returns a client whose connections lead to the proxy of an endpoint, as those of
// the gateway do. ended receives the error of each query connect.
func (b *broker) through(ctx context.Context, name, reference string, ended chan<- error) *http.Client {
	return &http.Client{Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return nil }, Transport: &http.Transport{
		DisableKeepAlives: true,
		Proxy:             http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"}),
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			id := fmt.Sprintf("conn-%s-%d", name, b.dials.Add(1))
			own, far := net.Pipe()
			in, w := io.Pipe()
			go func() {
				err := b.endpoints.connect(ctx, &events.ConnectRequest{ConnectionID: id, Endpoint: name, Reference: reference}, w)
				ended <- err
				w.CloseWithError(errors.Join(err, io.EOF))
			}()
			if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
				return nil, err
			}
			go func() { _, _ = io.Copy(far, in); _ = far.Close() }()
			go func() {
				buf := make([]byte, 4096)
				for n := int64(1); ; n++ {
					size, end := far.Read(buf)
					_, err := b.endpoints.tunnels.write(ctx, &events.ConnectionWriteRequest{ConnectionID: id, N: n, Data: buf[:size], Close: end != nil})
					if end != nil || err != nil {
						_ = far.Close()
						return
					}
				}
			}()
			return own, nil
		}}}
}

// endpointEvents returns the data of the events of the tenant "t" about flows to endpoints,
// and the number of denials among them.
func (b *broker) endpointEvents(t *testing.T) (out []events.EndpointFlowEnded, denied int) {
	t.Helper()
	for en, err := range b.log.Scan(context.Background(), "evt.t.egress-broker.>", 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		var f events.EndpointFlowEnded
		if err := json.Unmarshal(e.Data, &f); err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
		if e.Name == events.EndpointFlowDeniedName {
			denied++
		}
	}
	return out, denied
}

// TestConnect shows that a service reaches the endpoint that it names and no other server, not even
// through a redirect, and no endpoint of another service; that a name with a private address is not
// dialled, while an address in the configuration is; and that each flow and denial is recorded for the
// tenant, with bytes and without paths.
func TestConnect(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hush/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
			return
		}
		_, _ = io.Copy(w, r.Body)
	}))
	defer site.Close()
	secure := httptest.NewTLSServer(site.Config.Handler)
	defer secure.Close()
	b := newBroker(t, t.TempDir())
	b.addresses.Allowed = nil
	b.resolve = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("127.0.0.1")}, nil // one that may be dialled, and one that may not
	}
	var err error
	if b.endpoints.named, err = parseEndpoints(map[string][]string{"hook": {site.URL + "/hush"}, "tls": {secure.URL}, "named": {"http://hooks.example:80/hush"}, egress.EndpointBundles: {site.URL}}); err != nil {
		t.Fatal(err)
	}
	ctx := transient.InTenant(t.Context(), "t")
	ended := make(chan error, 16)
	send := func(name, to string) (int, string, error) {
		t.Helper()
		c := b.through(ctx, name, "e-"+name, ended)
		if tr := c.Transport.(*http.Transport); strings.HasPrefix(to, "https") {
			tr.TLSClientConfig = secure.Client().Transport.(*http.Transport).TLSClientConfig
		}
		r, err := c.Post(to, "text/plain", strings.NewReader("a notice"))
		if err != nil {
			return 0, "", err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		return r.StatusCode, string(body), err
	}
	for _, c := range []struct {
		name, to string
		status   int
		text     string
	}{{"hook", site.URL + "/hush", 200, "a notice"}, {"tls", secure.URL + "/hush", 200, "a notice"}, {"hook", site.URL + "/hush/away", 403, "host_denied"},
		{"hook", "http://127.0.0.1:1/hush", 403, "port_denied"}, {"named", "http://hooks.example/hush", 403, "address_blocked"}} {
		if status, text, err := send(c.name, c.to); status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%s %s: %d %q %v", c.name, c.to, status, text, err)
		}
	}
	if _, _, err := send("tls", strings.Replace(secure.URL, "127.0.0.1", "hooks.example", 1)); err == nil {
		t.Error("another host than the endpoint's was reached")
	}
	if _, _, err := send("none", site.URL); rpc.CodeOf(err) == "" || !strings.Contains(err.Error(), "no endpoint none") {
		t.Error("an endpoint that is not configured:", err)
	}
	if _, _, err := send(egress.EndpointBundles, site.URL); rpc.CodeOf(err) == "" || !strings.Contains(err.Error(), "no endpoint bundles") {
		t.Error("an endpoint of another service:", err)
	}
	for range 9 { // eight requests, and the redirected one
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("a query has not ended")
		}
	}
	flows, denied := b.endpointEvents(t)
	var got []string
	for _, f := range flows {
		got = append(got, f.Endpoint+" "+f.Mode+" "+f.Reason)
		if f.Reference != "e-"+f.Endpoint || f.Reason == "" && (f.BytesIn == 0 || f.BytesOut == 0 || f.Address == "") || f.Reason != "" && f.BytesOut > 0 {
			t.Errorf("%+v", f)
		}
		if raw, _ := json.Marshal(f); strings.Contains(string(raw), "hush") {
			t.Errorf("a path is recorded: %s", raw)
		}
	}
	slices.Sort(got)
	if want := "bundles  endpoint_unknown|hook http |hook http |hook http host_denied|hook http port_denied|named http address_blocked|none  endpoint_unknown|tls  host_denied|tls passthrough "; strings.Join(got, "|") != want || denied != 6 {
		t.Errorf("%d denials, %s, want %s", denied, strings.Join(got, "|"), want)
	}
	if left, err := os.ReadDir(b.Dir); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
}

// TestConnectEnds shows that a flow whose sender leaves, and one that is open when the broker
// stops, are recorded with a reason; that writes to the connections of others, and out of order,
// fail; and that no connection is opened after the stop.
func TestConnectEnds(t *testing.T) {
	hang := make(chan struct{})
	var reached sync.WaitGroup
	site := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reached.Done()
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	defer site.Close()
	defer close(hang)
	b := newBroker(t, t.TempDir())
	var err error
	if b.endpoints.named, err = parseEndpoints(map[string][]string{"hook": {site.URL}}); err != nil {
		t.Fatal(err)
	}
	ctx := transient.InTenant(t.Context(), "t")
	ended := make(chan error, 2)
	short, cancel := context.WithCancel(t.Context())
	post := func(ctx context.Context, reference string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, site.URL, strings.NewReader("a notice"))
		if err == nil {
			if r, e := b.through(transient.InTenant(t.Context(), "t"), "hook", reference, ended).Do(req); e == nil {
				r.Body.Close()
			}
		}
	}
	reached.Add(1)
	go post(short, "left")
	reached.Wait()
	for _, q := range []events.ConnectionWriteRequest{{ConnectionID: "conn-hook-1", N: 1}, {ConnectionID: "conn-hook-1", N: 9}, {ConnectionID: "conn-other", N: 1}} {
		if _, err := b.endpoints.tunnels.write(ctx, &q); err == nil {
			t.Errorf("%+v", q)
		}
	}
	if _, err := b.endpoints.tunnels.write(transient.InTenant(t.Context(), "other"), &events.ConnectionWriteRequest{ConnectionID: "conn-hook-1", N: 2}); rpc.CodeOf(err) != contract.CodeNotFound {
		t.Error("another tenant's connection:", err)
	}
	cancel()
	<-ended
	reached.Add(1)
	go post(t.Context(), "stopped")
	reached.Wait()
	b.endpoints.tunnels.Close()
	flows, _ := b.endpointEvents(t)
	if len(flows) != 2 || flows[0].Reason != string(proxy.ClientFailed) || flows[0].Reference != "left" || flows[1].Reference != "stopped" || flows[1].Reason == "" || flows[1].BytesOut == 0 {
		t.Errorf("%+v", flows)
	}
	if err := b.endpoints.connect(ctx, &events.ConnectRequest{ConnectionID: "conn-late", Endpoint: "hook"}, io.Discard); rpc.CodeOf(err) != contract.CodeUnavailable {
		t.Error("after the end:", err)
	}
}

// TestFlowLeft shows that a sweep records the flow of a process that was killed, once, and
// leaves one that is open.
func TestFlowLeft(t *testing.T) {
	b := newBroker(t, filepath.Join(t.TempDir(), "egress-broker-1"))
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	x := &flowFiles{es: &b.endpoints, of: sending{Tenant: "t", Endpoint: "hook", Sender: "gateway", Reference: "e-1"}}
	x.begin(proxy.Flow{ID: 1, Host: "a.example", Port: 443, Mode: "passthrough"})
	open := x.open[1]
	if open == nil {
		t.Fatal("no file")
	}
	if err := b.endpoints.sweep(t.Context()); err != nil || len(b.events()) != 0 {
		t.Fatal("a flow that is open was recorded:", err, b.events())
	}
	raw, err := os.ReadFile(open.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := open.file.Close(); err != nil { // ends the lock, as the end of the process does
		t.Fatal(err)
	}
	for range 2 { // the second time as after a crash of the process that recorded it
		if err := b.endpoints.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(open.path); err == nil {
			t.Error("the file remains")
		}
		if err := os.WriteFile(open.path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.events(); len(got) != 1 || got[0] != "endpoint_flow_ended:broker_failed" {
		t.Error(got)
	}
	if got := b.data(events.EndpointFlowEndedName); !strings.Contains(got, `"reference":"e-1"`) || !strings.Contains(got, `"host":"a.example"`) {
		t.Error(got)
	}
}

// TestEndpointsOf shows the endpoints of a configuration, and that the error about an invalid one
// names the setting but does not contain the path of its URL.
func TestEndpointsOf(t *testing.T) {
	got := EndpointsOf(&config.Config{Gateway: config.Gateway{JobWebhook: "https://a/x", OIDC: config.OIDC{Issuer: "https://b", Hosts: []string{"c:8443"}}, OAuth: config.OAuth{Documents: []string{"i"}}, ACME: config.ACME{Domains: []string{"f"}, Directory: "https://g/dir"}},
		Policy: config.Policy{BundleServers: []string{"d", "http://e:8080"}}, VaultBroker: config.VaultBroker{TokenEndpoints: []string{"h"}}})
	if len(got) != 6 || !slices.Equal(got[egress.EndpointClients], []string{"https://i"}) || !slices.Equal(got[egress.EndpointOAuth], []string{"https://h"}) || !slices.Equal(got[egress.EndpointACME], []string{"https://g/dir"}) || !slices.Equal(got[egress.EndpointBundles], []string{"https://d", "http://e:8080"}) || !slices.Equal(got[egress.EndpointJobWebhook], []string{"https://a/x"}) || !slices.Equal(got[egress.EndpointOIDC], []string{"https://b", "https://c:8443"}) {
		t.Error(got)
	}
	got = EndpointsOf(&config.Config{Artifacts: config.Artifacts{S3: config.S3{Endpoint: "http://s3/"}}, Tracing: config.Tracing{Endpoint: "https://spans:4318"}, EgressBroker: config.EgressBroker{Exports: []string{"siem:6514", "tcp://siem:514"}}})
	if len(got) != 3 || !slices.Equal(got[egress.EndpointArtifacts], []string{"tcp://s3:80"}) || !slices.Equal(got[egress.EndpointTraces], []string{"https://spans:4318/v1/traces"}) || !slices.Equal(got[egress.EndpointExports], []string{"https://siem:6514", "tcp://siem:514"}) {
		t.Error(got)
	}
	if got := EndpointsOf(&config.Config{Gateway: config.Gateway{OIDC: config.OIDC{Hosts: []string{"c"}}, ACME: config.ACME{Directory: "https://g/dir"}}}); len(got) != 0 {
		t.Error(got)
	}
	if _, err := parseEndpoints(map[string][]string{egress.EndpointBundles: {"https://0x7f.1/hush"}}); err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "policy.bundle_servers") {
		t.Error(err)
	}
}
