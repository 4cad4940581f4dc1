//go:build unix

package main_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/kafkatest/golden"
	"oncebus/processor/kafkatest/proxy"
)

// auditStart is the event time of the first order.
var auditStart = time.Date(2025, 3, 3, 8, 0, 0, 0, time.UTC)

// produceOrders fills the topic orders: 4,000 orders in three days, of which 4 % are sent again,
// by a shop soon and by a batch job hours later, to any of 4 partitions. Each has the time at
// which it was sent, so no two payloads are equal. Three copies have another amount, and ten
// events have no id. The traffic is the same in each run.
func produceOrders(t *testing.T, cluster *embedded.Cluster) {
	t.Helper()
	cluster.CreateTopic("orders", 4, "retention.ms", "-1")
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() // its last requests are not those of an audit
	rnd := rand.New(rand.NewPCG(7, 7))
	type order struct {
		at   time.Time
		id   int
		from string
	}
	var sent []order
	at := auditStart
	for id := range 4000 {
		at = at.Add(time.Duration(rnd.IntN(130)) * time.Second)
		sent = append(sent, order{at, id, "shop"})
		switch draw := rnd.IntN(1000); {
		case draw < 32:
			sent = append(sent, order{at.Add(time.Duration(1+rnd.IntN(50)) * time.Second), id, "shop"})
		case draw < 40:
			sent = append(sent, order{at.Add(time.Duration(3+rnd.IntN(12)) * time.Hour), id, "nightly"})
		}
	}
	slices.SortStableFunc(sent, func(a, b order) int { return a.at.Compare(b.at) })
	var records []*kgo.Record
	copies := map[int]int{}
	for n, o := range sent {
		amount, id := 10+o.id%90, fmt.Sprintf(`"id":"o-%05d",`, o.id)
		if copies[o.id]++; copies[o.id] > 1 && o.id%50 == 7 {
			amount++
		}
		if n%400 == 399 {
			id = ""
		}
		value := fmt.Sprintf(`{%s"customer":"c-%d","amount":%d,"sentAt":%d}`, id, o.id%300, amount, o.at.UnixMilli())
		records = append(records, &kgo.Record{
			Topic: "orders", Partition: rnd.Int32N(4), Key: fmt.Appendf(nil, "c-%d", o.id%300), Value: []byte(value), Timestamp: o.at,
			Headers: []kgo.RecordHeader{{Key: "producer", Value: []byte(o.from)}},
		})
	}
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// auditOf runs an audit that prints JSON.
func auditOf(t *testing.T, broker string, args ...string) (shown auditJSON) {
	t.Helper()
	got := execute(t.Context(), nil, "", append([]string{"audit", "--brokers", broker, "-o", "json"}, args...)...)
	if got.Code != cli.ExitStopped || got.Stderr != "" {
		t.Fatalf("%v: exit code %d, %s", args, got.Code, got.Stderr)
	}
	return snapshotOf[auditJSON](t, got.Stdout)
}

type estimateJSON struct {
	N     uint64
	Error float64 `json:"standard_error"`
}

// auditJSON has the fields of the output that the tests read.
type auditJSON struct {
	Records int
	Rules   []struct {
		Rule           string
		Usable         bool
		Counted        string
		OneIn          int `json:"one_key_in"`
		Events         int
		MissingKey     int `json:"missing_key"`
		Keys, Copies   estimateJSON
		OtherPayload   estimateJSON `json:"other_payload"`
		OtherPartition estimateJSON `json:"other_partition"`
		Window, Grace  struct {
			Text, Warning string
			Covers        float64
		}
		DiskRecords int `json:"disk_records"`
		BySender    []struct {
			Name   string
			Copies estimateJSON
		} `json:"by_sender"`
		ByHour     []struct{ Events int }           `json:"by_hour"`
		Mismatches []struct{ First, Copy string }   `json:"other_payload_samples"`
		Reasons    []struct{ Reason, First string } `json:"reasons"`
		Partitions []struct{ Name string }          `json:"by_partition"`
		Delays     []struct{ Copies estimateJSON }  `json:"delays"`
		Lateness   []struct{ Events int }           `json:"lateness"`
	}
}

// TestAuditFindsWhatIsInATopic reads the orders with several rules, and again exactly on disk
// and as a sample.
func TestAuditFindsWhatIsInATopic(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	produceOrders(t, cluster)
	broker := cluster.ListenAddrs()[0]
	a := auditOf(t, broker, "--topic", "orders", "--key", "field:id", "--key", "record_key", "--key", "raw", "--sender", "header:producer", "--ignore", "sentAt")
	id := a.Rules[0]
	if int(id.Keys.N+id.Copies.N)+id.MissingKey != a.Records || id.MissingKey != 10 || id.Keys.N != 4000-uint64(len(id.Reasons)-1) && id.Keys.N < 3990 {
		t.Errorf("field:id: %+v of %d records", id, a.Records)
	}
	if id.OtherPayload.N != uint64(len(id.Mismatches)) || id.OtherPayload.N < 2 || id.OtherPartition.N*4 < id.Copies.N*2 {
		t.Errorf("other payload %v (%v), other partition %v of %v", id.OtherPayload, id.Mismatches, id.OtherPartition, id.Copies)
	}
	if id.Window.Text != "24h" || id.Grace.Text != "10m" || !strings.Contains(id.Window.Warning, "only ") {
		t.Errorf("window %+v, grace %+v", id.Window, id.Grace)
	}
	if len(id.BySender) != 2 || id.BySender[0].Name != "shop" || id.BySender[0].Copies.N+id.BySender[1].Copies.N != id.Copies.N {
		t.Errorf("senders %+v", id.BySender)
	}
	if raw := a.Rules[2]; raw.Copies.N != 0 || a.Rules[1].Keys.N != 300 {
		t.Errorf("raw: %+v copies; record_key: %v keys", raw.Copies, a.Rules[1].Keys)
	}
	dir := t.TempDir()
	disk := auditOf(t, broker, "--topic", "orders", "--key", "field:id", "--keys-max", "1000", "--exact", dir, "--ignore", "sentAt").Rules[0]
	if disk.Counted != "disk" || disk.DiskRecords < 2000 || disk.Keys != id.Keys || disk.Copies != id.Copies || !slices.Equal(disk.Mismatches, id.Mismatches) {
		t.Errorf("on disk %+v, in memory %+v", disk, id)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the directory still has %v (%v)", left, err)
	}
	sample := auditOf(t, broker, "--topic", "orders", "--key", "field:id", "--keys-max", "1000").Rules[0]
	if sample.Counted != "sample" || sample.OneIn < 4 || sample.Copies.Error == 0 || sample.Events != id.Events {
		t.Errorf("sample: %+v", sample)
	}
}

// TestAuditTakesTheRuleOfARoute: its key, its time and its topics.
func TestAuditTakesTheRuleOfARoute(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	produceOrders(t, cluster)
	routes := filepath.Join(t.TempDir(), "routes.yaml")
	file := "routes:\n- {name: orders, topics: [orders], key: [{field: id}], window: 24h, output: out, time: {field: sentAt}, sender: {header: producer}}\n"
	if err := os.WriteFile(routes, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	broker := cluster.ListenAddrs()[0]
	a := auditOf(t, broker, "--routes", routes, "--route", "orders")
	if r := a.Rules[0]; r.Rule != "route orders" || r.Copies.N != auditOf(t, broker, "--topic", "orders", "--key", "field:id").Rules[0].Copies.N || len(r.BySender) != 2 {
		t.Errorf("%+v", r)
	}
	part := auditOf(t, broker, "--routes", routes, "--route", "orders", "--from", auditStart.Add(24*time.Hour).Format(time.RFC3339), "--to", auditStart.Add(48*time.Hour).Format(time.RFC3339))
	if part.Records < 1000 || part.Records > 2000 {
		t.Errorf("the second of three days has %d of %d records", part.Records, a.Records)
	}
}

// TestSuggestSaysThatItLooksIntoJSONOnly: in another format no field is a candidate.
func TestSuggestSaysThatItLooksIntoJSONOnly(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	cluster.CreateTopic("packed", 1)
	got := execute(t.Context(), nil, "", "audit", "--brokers", cluster.ListenAddrs()[0], "--topic", "packed", "--suggest", "--format", "cbor")
	if want := "warning: --suggest looks into JSON only: name fields of cbor by --key\n"; got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, want) {
		t.Errorf("exit code %d, %s%s", got.Code, got.Stdout, got.Stderr)
	}
}

// readingAPIs are the requests that an audit may send.
var readingAPIs = []kmsg.Key{kmsg.Metadata, kmsg.ApiVersions, kmsg.ListOffsets, kmsg.Fetch, kmsg.OffsetForLeaderEpoch, kmsg.SASLHandshake, kmsg.SASLAuthenticate, kmsg.DescribeConfigs}

// TestAuditSendsNoRequestThatWrites: all connections go through a proxy that forwards reading
// requests alone, and counts all.
func TestAuditSendsNoRequestThatWrites(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	produceOrders(t, cluster)
	p, err := proxy.Listen(t.Context(), 1)
	if err == nil {
		err = p.Forward(cluster.ListenAddrs())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	addr := p.Addrs()[0]
	var port int32
	if _, err := fmt.Sscanf(addr, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	var others []int16
	for key := range kmsg.MaxKey + 1 {
		if !slices.ContainsFunc(readingAPIs, func(k kmsg.Key) bool { return k.Int16() == int16(key) }) {
			others = append(others, int16(key))
		}
	}
	for _, rule := range []proxy.Rule{
		{Match: proxy.Match{APIs: []int16{kmsg.Metadata.Int16()}}, Action: proxy.PatchResponse, Patch: func(resp kmsg.Response) {
			meta := resp.(*kmsg.MetadataResponse)
			for i := range meta.Brokers {
				meta.Brokers[i].Host, meta.Brokers[i].Port = "127.0.0.1", port
			}
		}},
		{Match: proxy.Match{APIs: others}, Action: proxy.DropRequest},
	} {
		if _, err := p.Add(rule); err != nil {
			t.Fatal(err)
		}
	}
	var seen, bypassed int
	cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		if seen++; !slices.ContainsFunc(readingAPIs, func(k kmsg.Key) bool { return k.Int16() == req.Key() }) {
			bypassed++
			t.Errorf("the broker got %s", kmsg.NameForKey(req.Key()))
		}
		return nil, nil, false
	})
	for _, args := range [][]string{{"--key", "field:id"}, {"--suggest"}, {"--key", "field:id", "--since", "100000h", "--to", "1h", "--keys-max", "1000", "--exact", t.TempDir()}} {
		if a := auditOf(t, addr, append([]string{"--topic", "orders"}, args...)...); a.Records < 4000 {
			t.Errorf("%v read %d records", args, a.Records)
		}
	}
	var forwarded int
	for _, k := range readingAPIs {
		forwarded += p.Requests(k)
	}
	if forwarded == 0 || forwarded != seen || p.Requests(kmsg.Fetch) == 0 {
		t.Errorf("the broker got %d requests, of which the proxy forwarded %d", seen, forwarded)
	}
	t.Logf("%d requests, all of which read: %d Fetch, %d ListOffsets, %d Metadata", seen, p.Requests(kmsg.Fetch), p.Requests(kmsg.ListOffsets), p.Requests(kmsg.Metadata))
}

// TestAuditReadsCommittedRecordsUpToTheStart: an aborted transaction does not count, and an
// open one does not make it wait.
func TestAuditReadsCommittedRecordsUpToTheStart(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	cluster.CreateTopic("orders", 1, "retention.ms", "-1")
	produce := func(client *kgo.Client, id string) {
		t.Helper()
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte(`{"id":"` + id + `"}`), Timestamp: auditStart}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	produce(cluster.Client(), "a")
	for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		client := cluster.Client(kgo.TransactionalID("writer"))
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		produce(client, "a")
		if err := client.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
	open := cluster.Client(kgo.TransactionalID("open"))
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(open, "a")
	produce(cluster.Client(), "a") // behind the open transaction
	if a := auditOf(t, cluster.ListenAddrs()[0], "--topic", "orders", "--key", "field:id"); a.Records != 2 || a.Rules[0].Copies.N != 1 {
		t.Errorf("%+v, want the first record and that of the commit", a)
	}
}

// TestAuditRefusesMistakes names the mistake before it connects, but for those in the topic.
func TestAuditRefusesMistakes(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	cluster.CreateTopic("empty", 2)
	cluster.CreateTopic("timeless", 1)
	if err := cluster.Client().ProduceSync(t.Context(), &kgo.Record{Topic: "timeless", Value: []byte(`{"id":1}`), Timestamp: time.UnixMilli(-1)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	broker := cluster.ListenAddrs()[0]
	for args, want := range map[string]string{
		"--key field:id":                                                   "want --topic",
		"--topic empty --topic empty --key raw":                            "--topic names a topic twice",
		"--topic orders":                                                   "want --key",
		"--topic empty --key fild:id":                                      "unknown source \"fild\", want one of record_key, header, field, fields, hash, payload, raw, cloudevent, order, form; did you mean field?",
		"--topic empty --key field":                                        "field needs an argument, such as field:id",
		"--topic empty --key raw:x":                                        "raw takes no argument",
		"--topic empty --key payload:without=x":                            "want payload, payload:exclude=sentAt,retries or",
		"--topic empty --key field:a..b":                                   `--key "field:a..b"`,
		"--topic empty --key field:id;field:id":                            "listed twice",
		"--topic empty --key field:id --time at:iso":                       `--time "at:iso"`,
		"--topic empty --key field:id --sender from":                       `--sender "from"`,
		"--topic empty --key field:id --from 1h --to 2h":                   "--from is not before --to",
		"--topic empty --key field:id --from 1h --since 2h":                "either --from or --since",
		"--topic empty --key field:id --keys-max 5":                        "--keys-max is a number from 1000",
		"--topic empty --key field:id --exact /nowhere/at/all":             "want a directory that exists",
		"--topic nothing --key field:id":                                   "topic nothing does not exist",
		"--topic bad! --key field:id":                                      "--topic",
		"--topic timeless --key field:id":                                  "timeless/0/0 has no timestamp, so no window can be known: name the payload field with the event time by --time",
		"--route nothing --routes " + deployments + "/routes/signals.yaml": `has no route "nothing"`,
		"--routes routes.yaml --topic empty --key raw":                     "--routes needs --route",
	} {
		got := execute(t.Context(), nil, "", append([]string{"audit", "--brokers", broker}, strings.Fields(args)...)...)
		if got.Code != cli.ExitWrong || !strings.Contains(got.Stderr, want) || got.Stdout != "" {
			t.Errorf("audit %s: exit code %d, %q, want %q", args, got.Code, got.Stderr, want)
		}
	}
	if got := execute(t.Context(), nil, "", "audit", "--topic", "x", "--key", "raw"); got.Code != cli.ExitWrong || !strings.Contains(got.Stderr, "ONCEBUS_BROKERS: not set") {
		t.Errorf("without brokers: %+v", got)
	}
	if a := auditOf(t, broker, "--topic", "empty", "--key", "field:id"); a.Records != 0 || a.Rules[0].Window.Text != "none" {
		t.Errorf("an empty topic: %+v", a)
	}
	if a := auditOf(t, broker, "--topic", "timeless", "--key", "field:id", "--time", "id"); a.Rules[0].Keys.N != 1 {
		t.Errorf("a topic whose payload has the time: %+v", a)
	}
}

// took matches how long an audit took.
var took = regexp.MustCompile(`in \d+\.\d s\n`)

// TestAuditPage runs the commands of the page, whose output is that of the page. With
// -rewrite it writes the page.
func TestAuditPage(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	produceOrders(t, cluster)
	page := filepath.Join(moduleRoot, "cmd", "oncebus", "AUDIT.md")
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n := 0
	text := regexp.MustCompile("(?s)```console\n(.*?)```").ReplaceAllStringFunc(string(data), func(block string) string {
		command, _, _ := strings.Cut(strings.TrimPrefix(strings.ReplaceAll(block, "\\\n", ""), "```console\n$ oncebus "), "\n")
		written, _, _ := strings.Cut(block, "\n")
		for line := range strings.Lines(block) {
			if written = line; !strings.HasSuffix(line, "\\\n") && !strings.HasPrefix(line, "```") {
				break
			}
		}
		head, _, _ := strings.Cut(block, written)
		args := strings.Fields(strings.NewReplacer("'", "", "localhost:9092", cluster.ListenAddrs()[0], "audit.html", filepath.Join(dir, "audit.html")).Replace(command))
		got := execute(t.Context(), nil, "", args...)
		if got.Code != cli.ExitStopped || got.Stderr != "" {
			t.Errorf("%s: %+v", command, got)
		}
		n++
		return head + written + took.ReplaceAllString(got.Stdout, "in 0.1 s\n") + "```"
	})
	if n < 3 {
		t.Errorf("the page has %d commands", n)
	}
	if golden.Rewrite() {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != string(data) {
		t.Errorf("the output differs from %s, run make pages; want\n%s", page, text)
	}
	if html, err := os.ReadFile(filepath.Join(dir, "audit.html")); err != nil || regexp.MustCompile(`https?:|src=|url\(`).Match(html) {
		t.Errorf("the report of the page: %v, or it names an address", err)
	}
}

// TestAuditReportEscapesNames: a sender chooses what stands in its records.
func TestAuditReportEscapesNames(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	cluster.CreateTopic("orders", 1, "retention.ms", "-1")
	client := cluster.Client()
	for range 3 {
		rec := &kgo.Record{Topic: "orders", Value: []byte(`{"id":"1"}`), Timestamp: auditStart, Headers: []kgo.RecordHeader{{Key: "from", Value: []byte(`<script>alert(1)</script>`)}}}
		if err := client.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "audit.html")
	auditOf(t, cluster.ListenAddrs()[0], "--topic", "orders", "--key", "field:id", "--key", "{field: '<b>'}", "--sender", "header:from", "--report", file)
	html, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(html), "<script") || strings.Contains(string(html), "<b>") || !strings.Contains(string(html), "&lt;script&gt;") {
		t.Errorf("the page has a name as it is:\n%s", html)
	}
}

// TestAuditSkipsABatchThatIsTooLarge: a batch may decompress to a thousand times its size, and
// an audit runs where its topics' writers are not known.
func TestAuditSkipsABatchThatIsTooLarge(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	cluster.CreateTopic("orders", 1, "retention.ms", "-1")
	client := cluster.Client(kgo.ProducerBatchCompression(kgo.GzipCompression()), kgo.ProducerBatchMaxBytes(8<<20), kgo.ProducerLinger(0))
	order := &kgo.Record{Topic: "orders", Value: []byte(`{"id":"1"}`), Timestamp: auditStart}
	zeros := &kgo.Record{Topic: "orders", Value: make([]byte, 3<<20), Timestamp: auditStart}
	for _, rec := range []*kgo.Record{order, zeros, order} {
		sent := *rec
		if err := client.ProduceSync(t.Context(), &sent).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	got := execute(t.Context(), []string{"ONCEBUS_BROKERS=" + cluster.ListenAddrs()[0], "ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES=2097152"}, "", "audit", "--topic", "orders", "--key", "field:id")
	for _, want := range []string{"1 batches decompress to more than 2097152 bytes, or have a wrong checksum, and were not read, the first one at orders/0 offset 1:", "keys            1, copies 1 (50 %)"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("it does not say %q:\n%s%s", want, got.Stdout, got.Stderr)
		}
	}
}
