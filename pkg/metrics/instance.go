package metrics

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Instance holds the metrics of one instance of a service; each has the labels service
// and instance. It is safe for concurrent use.
type Instance struct {
	prometheus.Registerer // registers a service's own metrics, with the labels service and instance

	reg     *Registry
	appends *prometheus.HistogramVec
	effects *prometheus.HistogramVec
	reacted *prometheus.HistogramVec
	events  capped
}

// buckets are the histogram buckets for durations, in seconds: from 0.5 ms, doubling, to
// 16.4 s.
var buckets = prometheus.ExponentialBuckets(0.0005, 2, 16)

// Instance adds an instance of a service to the registry and returns its metrics.
// Instance.Close removes them.
func (r *Registry) Instance(service, instance string) *Instance {
	own := prometheus.NewRegistry()
	i := &Instance{events: capped{seen: map[string]bool{}}, Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"service": service, "instance": instance}, own), reg: r,
		appends: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "binnacle_append_seconds", Help: "Time to append an event to the ledger, by name of the event and by result: stored, conflict or failed.", Buckets: buckets}, []string{"event", "result"}),
		effects: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "binnacle_effect_seconds", Help: "Time that an executor's handler took, by family of the call's kind and by status.", Buckets: buckets}, []string{"kind", "status"}),
		reacted: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "binnacle_reaction_seconds", Help: "Time that a handler off the hot path took for an event, by reactor and by status: ok, retry or poison.", Buckets: buckets}, []string{"reactor", "status"})}
	i.MustRegister(i.appends, i.effects, i.reacted)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instances[i] = own
	return i
}

// Close removes the instance's metrics from the registry.
func (i *Instance) Close() {
	i.reg.mu.Lock()
	defer i.reg.mu.Unlock()
	delete(i.reg.instances, i)
}

// Gauge registers a metric of the instance whose value is that of f at the time of a scrape.
// It must be called at most once per name.
func (i *Instance) Gauge(name, help string, f func() float64) {
	i.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
}

// Process returns the registry of the process that the instance runs in.
func (i *Instance) Process() *Registry { return i.reg }

// Connection registers metrics of the instance's connection to the NATS server. It must
// be called at most once.
func (i *Instance) Connection(c *bus.Conn) {
	counter := func(name, help string, f func() uint64) {
		i.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(f()) }))
	}
	counter("binnacle_nats_received_bytes_total", "Bytes received from the NATS server.", func() uint64 { return c.NC.Stats().InBytes })
	counter("binnacle_nats_received_messages_total", "Messages received from the NATS server.", func() uint64 { return c.NC.Stats().InMsgs })
	counter("binnacle_nats_sent_bytes_total", "Bytes sent to the NATS server.", func() uint64 { return c.NC.Stats().OutBytes })
	counter("binnacle_nats_sent_messages_total", "Messages sent to the NATS server.", func() uint64 { return c.NC.Stats().OutMsgs })
	counter("binnacle_nats_reconnects_total", "Times that the connection to the NATS server was made again.", func() uint64 { return c.NC.Stats().Reconnects })
}

// Part is the state of one view or dependency of an instance.
type Part struct {
	Name     string
	OK       bool
	Position uint64 // ledger sequence of the last event that a view applied or a work consumer delivered; 0 if there is none
	Lag      uint64 // events that a view has not applied, or that a work consumer has not delivered or has no acknowledgement for
}

// partsWithin is the timeout for collecting the state of the parts during a scrape.
const partsWithin = 2 * time.Second

// Parts registers metrics of the state of an instance's parts. It must be called at most
// once. f returns that state; each scrape calls f with a context that has the timeout
// partsWithin. Of several parts with one name, only the first is reported.
func (i *Instance) Parts(f func(context.Context) []Part) {
	label := []string{"part"}
	i.MustRegister(&parts{f,
		prometheus.NewDesc("binnacle_part_ready", "Whether a view or dependency of the instance is ready.", label, nil),
		prometheus.NewDesc("binnacle_part_position", "Sequence of the ledger's last event that a view applied.", label, nil),
		prometheus.NewDesc("binnacle_part_lag_events", "Events that wait for a view or a work consumer.", label, nil)})
}

// parts is the Prometheus collector that Instance.Parts registers.
type parts struct {
	now                  func(context.Context) []Part
	ready, position, lag *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (p *parts) Describe(c chan<- *prometheus.Desc) { c <- p.ready; c <- p.position; c <- p.lag }

// Collect implements prometheus.Collector.
func (p *parts) Collect(c chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), partsWithin)
	defer cancel()
	seen := map[string]bool{}
	for _, x := range p.now(ctx) {
		if seen[x.Name] {
			continue // Prometheus rejects the whole page if a series occurs twice
		}
		seen[x.Name] = true
		ready := 0.0
		if x.OK {
			ready = 1
		}
		c <- prometheus.MustNewConstMetric(p.ready, prometheus.GaugeValue, ready, x.Name)
		c <- prometheus.MustNewConstMetric(p.position, prometheus.GaugeValue, float64(x.Position), x.Name)
		c <- prometheus.MustNewConstMetric(p.lag, prometheus.GaugeValue, float64(x.Lag), x.Name)
	}
}

// Other is the label value for every value outside a closed set, and for event names
// beyond maxEvents.
const Other = "other"

// Closed sets of label values. Callers can choose any kind, and each label value costs
// memory until the instance is closed, so values outside these sets are counted as
// Other.
var (
	families = services.Families()
	statuses = []string{contract.Succeeded, contract.Failed, contract.Denied, contract.Expired, contract.TimedOut, contract.Cancelled, contract.Unknown, contract.DeadLettered}
)

// Statuses returns the statuses of effects, the values of the label status.
func Statuses() []string { return slices.Clone(statuses) }

// Family returns the part of a kind before the first dot if it is a known family of
// kinds, and Other otherwise.
func Family(kind string) string {
	prefix, _, _ := strings.Cut(kind, ".")
	return OneOf(families, prefix)
}

// OneOf returns v if set contains it, and Other otherwise.
func OneOf(set []string, v string) string {
	if slices.Contains(set, v) {
		return v
	}
	return Other
}

// Effect records that an executor's handler ended a call of the given kind with the
// given status, and how long it took.
func (i *Instance) Effect(kind, status string, took time.Duration) {
	i.effects.WithLabelValues(Family(kind), OneOf(statuses, status)).Observe(took.Seconds())
}

// Reaction records that a reactor handled an event, with the status of the result and how
// long it took; see package react.
func (i *Instance) Reaction(reactor, status string, took time.Duration) {
	i.reacted.WithLabelValues(reactor, status).Observe(took.Seconds())
}

// Log returns a ledger that forwards to l and measures each append.
func (i *Instance) Log(l eventlog.Log) eventlog.Log { return &counted{l, i} }

// counted is a ledger that measures its appends.
type counted struct {
	eventlog.Log
	to *Instance
}

// Append implements eventlog.Log.
func (c *counted) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	began := time.Now()
	seq, err := c.Log.Append(ctx, subject, id, data)
	c.count(subject, began, err)
	return seq, err
}

// AppendExpect implements eventlog.Log.
func (c *counted) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	began := time.Now()
	seq, err := c.Log.AppendExpect(ctx, subject, id, data, filter, expect)
	c.count(subject, began, err)
	return seq, err
}

// Start implements eventlog.Log.
func (c *counted) Start(subject, id string, data []byte) func(context.Context) (uint64, error) {
	began := time.Now()
	wait := c.Log.Start(subject, id, data)
	return func(ctx context.Context) (uint64, error) {
		seq, err := wait(ctx)
		c.count(subject, began, err)
		return seq, err
	}
}

// count records the duration and the result of one append. A conflict is a result of
// its own because writers retry it; it is not a failure of the ledger.
func (c *counted) count(subject string, began time.Time, err error) {
	result := "stored"
	switch {
	case errors.Is(err, eventlog.ErrConflict) || errors.Is(err, eventlog.ErrIDConflict):
		result = "conflict"
	case err != nil:
		result = "failed"
	}
	c.to.appends.WithLabelValues(c.to.events.value(eventOf(subject)), result).Observe(time.Since(began).Seconds())
}

// eventOf returns the name of the event that is stored under a subject. The name of an
// allowed event ends in its executor's name, which eventOf leaves out.
func eventOf(subject string) string {
	for range 4 { // skip the tokens evt, tenant, service and origin
		_, subject, _ = strings.Cut(subject, ".")
	}
	name, _, _ := strings.Cut(subject, ".")
	if strings.HasPrefix(name, contract.EventAllowed+"_") {
		name = contract.EventAllowed
	}
	return name
}

// maxEvents is the maximum number of event names with a label value of their own. The
// names are constants in the code, so the limit only guards against programming errors.
const maxEvents = 100

// capped limits the values of a label: the first maxEvents different values are kept,
// later ones become Other. It is safe for concurrent use.
type capped struct {
	mu   sync.Mutex
	seen map[string]bool
}

// value returns v, or Other if v is new and maxEvents other values have been seen.
func (c *capped) value(v string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seen[v] {
		if len(c.seen) >= maxEvents {
			return Other
		}
		c.seen[v] = true
	}
	return v
}
