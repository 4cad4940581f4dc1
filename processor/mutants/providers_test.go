//go:build mutants

package mutants

func inIngress(run string) []suite   { return []suite{ingressSuite.aimed(run)} }
func inSignature(run string) []suite { return []suite{signatureSuite.aimed(run)} }

const requestsOutsideSim = "its events come by Kafka"

// providerList has the defects of presets: what makes a key, what is an event, and what a
// stranger may cost.
var providerList = []mutant{
	{
		name:    "preset-keys-by-unsigned-id",
		hazards: []string{"P1"},
		does:    "the preset of Linear keys by the id of the delivery, which is not signed",
		edits: []edit{{"dedup/rules/providers.go",
			`Route: "key: [{payload: {exclude: [webhookTimestamp]}}]\ntime`, `Route: "key: [{header: linear-delivery}]\ntime`}},
		aims:     []suite{rulesSuite.aimed("^TestPresetsKeyByWhatIsSigned$"), ingressSuite.aimed("^TestProviderPresets$")},
		notInSim: requestsOutsideSim,
	},
	{
		name:     "handshake-is-an-event",
		hazards:  []string{"P2"},
		does:     "a signed handshake is produced as an event",
		edits:    []edit{{"processor/ingress/event.go", "Body: body}, rq.received); answer != nil {", "Body: body}, rq.received); answer != nil && rq.bytes < 0 {"}},
		aims:     inIngress("^TestProvidersOverHTTP$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "handshake-without-its-token",
		hazards:  []string{"P2"},
		does:     "Meta's handshake is answered whatever its token is",
		edits:    []edit{{"processor/ingress/handshake.go", "Query: r.URL.RawQuery}, s.now()); err != nil {", "Query: r.URL.RawQuery}, s.now()); err != nil && rq.bytes > 0 {"}},
		aims:     inIngress("^TestHandshakesAreNotEvents$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "bomb-without-a-bound",
		hazards:  []string{"P3"},
		does:     "a body is decompressed whole before its size is checked",
		edits:    []edit{{"processor/ingress/decompress.go", "readAll(io.LimitReader(in, limit+1), limit+1, rq.limits)", "readAll(in, 1<<40, rq.limits)"}},
		aims:     inIngress("^TestCompressedBodies$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "bomb-cut-off",
		hazards:  []string{"P3"},
		does:     "the beginning of a body that decompresses to too much is the event",
		edits:    []edit{{"processor/ingress/decompress.go", "case int64(len(plain)) > limit:", "case int64(len(plain)) > limit+1:"}},
		aims:     inIngress("^TestCompressedBodies$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "decompressed-before-the-signature",
		hazards:  []string{"P3"},
		does:     "a stranger's body is decompressed before its signature is checked",
		edits:    []edit{{"processor/ingress/body.go", "if rules.decompress.Decompressed {\n\t\tif body, rejected", "if coding != \"\" {\n\t\tif body, rejected"}},
		aims:     inIngress("^TestCompressedBodies$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "compressed-bytes-as-an-event",
		hazards:  []string{"P12"},
		does:     "a compressed body without its coding is an event",
		edits:    []edit{{"processor/ingress/decompress.go", "if n > limit || err == nil && sent.Len() == 0 {", "if n > limit && err != nil {"}},
		aims:     inIngress("^TestCompressedBodies$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "adyen-with-two-readings",
		hazards:  []string{"P4"},
		does:     "a colon may shift the border between two signed fields",
		edits:    []edit{{"processor/ingress/signature/adyen.go", `i != 3 && strings.Contains(field, ":")`, `i > 7 && strings.Contains(field, ":")`}},
		aims:     inSignature("^TestAdyenHasOneReading$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "hook0-with-two-readings",
		hazards:  []string{"P4"},
		does:     "a full stop may shift the border between two signed headers",
		edits:    []edit{{"processor/ingress/signature/hook0.go", `i < len(names)-1 && strings.Contains(value, ".")`, `i >= len(names) && strings.Contains(value, ".")`}},
		aims:     inSignature("^TestHook0HasOneReading$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "twilio-body-unsigned",
		hazards:  []string{"P5"},
		does:     "the digest in the URL is not compared with the body",
		edits:    []edit{{"processor/ingress/signature/twilio.go", "[]byte(digest)) != 1 {", "[]byte(digest)) > 1 {"}},
		aims:     inSignature("^TestTwilioSignsURLAndFields$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:    "any-query-before-the-form",
		hazards: []string{"P5"},
		does:    "the first fields of a signed form may stand in the query, which makes no key",
		edits: []edit{
			{"processor/ingress/signature/twilio.go", "	if query != v.urlQuery {", "	if query != v.urlQuery && query == \"\" {"},
			{"processor/ingress/signature/twilio.go", "	u.before, u.content = v.url, []byte{}", "	u.before, u.content = strings.TrimSuffix(v.url, v.urlQuery)+r.Query, []byte{}"},
		},
		aims:     inSignature("^TestQueryHasABorder$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:    "form-key-by-position",
		hazards: []string{"P5"},
		does:    "the key of a form counts a pair as often as it came, which is not signed",
		edits:   []edit{{"dedup/rules/form.go", "for _, text := range slices.Compact(texts) {", "for _, text := range texts {"}},
		aims: []suite{
			rulesSuite.aimed("^(TestGoldenKeys|TestFormsReadAsObjects)$"), ingressSuite.aimed("^TestFormsOfOneSignatureAreOneEvent$"),
		},
		notInSim: requestsOutsideSim,
	},
	{
		name:     "json-read-as-a-form",
		hazards:  []string{"P11"},
		does:     "the media type, which is not signed, decides whether a body is JSON",
		edits:    []edit{{"dedup/rules/form.go", `if kind == "" || looksLikeJSON(d.in.Value) {`, `if kind == "" {`}},
		aims:     []suite{rulesSuite.aimed("^TestOneBodyHasOneReading$"), ingressSuite.aimed("^TestProviderPresets$")},
		notInSim: requestsOutsideSim,
	},
	{
		name:     "form-of-any-boundary",
		hazards:  []string{"P11"},
		does:     "a multipart form is read with a boundary that stands anywhere in it",
		edits:    []edit{{"dedup/rules/form.go", "case !begins || !bytes.HasPrefix(rest", "case !begins && len(body) < 0 && !bytes.HasPrefix(rest"}},
		aims:     []suite{rulesSuite.aimed("^TestOneBodyHasOneReading$")},
		notInSim: requestsOutsideSim,
	},
	{
		name:     "zoom-signs-a-request",
		hazards:  []string{"P6"},
		does:     "the handshake of Zoom signs a text that is also that of a request",
		edits:    []edit{{"processor/ingress/handshake.go", `fitsHeader(token) && !strings.Contains(token, ":")`, `fitsHeader(token) && !strings.Contains(token, "\n")`}},
		aims:     inIngress("^TestHandshakeSignsNoRequest$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "preset-refuses-duplicates",
		hazards:  []string{"P7"},
		does:     "a provider gets 409 for a duplicate, so it repeats the event until it disables the endpoint",
		edits:    []edit{{"dedup/rules/provider.go", "dedup.Unique, dedup.Duplicate, dedup.AfterWindow,", "dedup.Unique, dedup.AfterWindow,"}},
		aims:     inIngress("^TestProvidersOverHTTP$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "certificate-of-any-host",
		hazards:  []string{"P8"},
		does:     "the certificate's address may be that of a stranger",
		edits:    []edit{{"processor/ingress/signature/public.go", "!slices.Contains(paypalHosts, u.Host)", "len(paypalHosts) == 0"}},
		aims:     inSignature("^TestPayPalCertificates$"),
		notInSim: requestsOutsideSim,
	},
	{
		name:     "certificate-without-a-chain",
		hazards:  []string{"P8"},
		does:     "a certificate outside its dates, or of another authority, is used",
		edits:    []edit{{"processor/ingress/signature/public.go", "	return err == nil\n}\n\n// verifies reports", "	return err == nil || len(s.chain) > 0\n}\n\n// verifies reports"}},
		aims:     inSignature("^TestPayPalCertificates$"),
		notInSim: requestsOutsideSim,
	},
}
