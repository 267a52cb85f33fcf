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

// Instance holds the figures of one instance of a service; each has the labels service
// and instance. It is safe for concurrent use.
type Instance struct {
	prometheus.Registerer // takes figures of the service's own; they get the two labels too

	reg     *Registry
	appends *prometheus.HistogramVec
	effects *prometheus.HistogramVec
	events  capped
}

// buckets are for durations from half a millisecond to a quarter of a minute.
var buckets = prometheus.ExponentialBuckets(0.0005, 2, 16)

// Instance adds an instance of a service to the registry; Close removes it.
func (r *Registry) Instance(service, instance string) *Instance {
	own := prometheus.NewRegistry()
	i := &Instance{events: capped{seen: map[string]bool{}}, Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"service": service, "instance": instance}, own), reg: r,
		appends: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "binnacle_append_seconds", Help: "Time to append an event to the ledger, by name of the event and by result: stored, conflict or failed.", Buckets: buckets}, []string{"event", "result"}),
		effects: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "binnacle_effect_seconds", Help: "Time that an executor's handler took, by family of the call's kind and by status.", Buckets: buckets}, []string{"kind", "status"})}
	i.MustRegister(i.appends, i.effects)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instances[i] = own
	return i
}

// Close removes the instance's figures from the registry.
func (i *Instance) Close() {
	i.reg.mu.Lock()
	defer i.reg.mu.Unlock()
	delete(i.reg.instances, i)
}

// Process is the registry of the whole process.
func (i *Instance) Process() *Registry { return i.reg }

// Connection adds the figures of the instance's connection to the NATS server.
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

// Part is the state of a view or a dependency of an instance.
type Part struct {
	Name     string
	OK       bool
	Position uint64 // last sequence of the ledger that was applied
	Lag      uint64 // events that wait
}

// partsWithin bounds how long a scrape waits for the state of the parts.
const partsWithin = 2 * time.Second

// Parts adds the state of an instance's parts, which f returns at each scrape.
func (i *Instance) Parts(f func(context.Context) []Part) {
	label := []string{"part"}
	i.MustRegister(&parts{f,
		prometheus.NewDesc("binnacle_part_ready", "Whether a view or dependency of the instance is ready.", label, nil),
		prometheus.NewDesc("binnacle_part_position", "Sequence of the ledger's last event that a view applied.", label, nil),
		prometheus.NewDesc("binnacle_part_lag_events", "Events that wait for a view or a work consumer.", label, nil)})
}

// parts is the collector of Instance.Parts.
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
			continue // a second part of that name would make the page invalid
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

// Other labels what has no value of its own in a closed set.
const Other = "other"

// Closed sets of label values: callers invent kinds without end, and each value costs
// memory for as long as the process runs.
var (
	families = services.Families()
	statuses = []string{contract.Succeeded, contract.Failed, contract.Denied, contract.Expired, contract.TimedOut, contract.Cancelled, contract.Unknown, contract.DeadLettered}
)

func oneOf(set []string, v string) string {
	if slices.Contains(set, v) {
		return v
	}
	return Other
}

// Effect counts what an executor's handler did: a call of a kind that ended with a
// status after a time.
func (i *Instance) Effect(kind, status string, took time.Duration) {
	family, _, _ := strings.Cut(kind, ".")
	i.effects.WithLabelValues(oneOf(families, family), oneOf(statuses, status)).Observe(took.Seconds())
}

// Log returns the ledger, with its appends counted.
func (i *Instance) Log(l eventlog.Log) eventlog.Log { return &counted{l, i} }

// counted is a ledger whose appends are counted.
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

// eventOf is the name of the event that is stored under a subject.
func eventOf(subject string) string {
	for range 4 { // evt, tenant, service, origin
		_, subject, _ = strings.Cut(subject, ".")
	}
	name, _, _ := strings.Cut(subject, ".")
	if strings.HasPrefix(name, contract.EventAllowed+"_") {
		name = contract.EventAllowed
	}
	return name
}

// maxEvents is the most names of events that have a label of their own. Names are
// constants of the code that appends them, so this bounds mistakes.
const maxEvents = 100

// capped lets the first values have labels of their own, and no others.
type capped struct {
	mu   sync.Mutex
	seen map[string]bool
}

// value is v, or Other where too many values were seen before.
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
