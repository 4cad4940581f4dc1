{{/* The name of the objects. 40 characters leave room for suffixes, a pod's number and the label of a revision, which has at most 63.
A release's name may have dots, and that of a Service may not. */}}
{{- define "oncebus.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default ($full | replace "." "-") | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "oncebus.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The labels that select the pods of a component: never change them, a StatefulSet's selector is fixed. */}}
{{- define "oncebus.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "oncebus.labels" -}}
{{ include "oncebus.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "oncebus.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "oncebus.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "oncebus.routesConfigMap" -}}
{{ default (printf "%s-routes" (include "oncebus.fullname" .)) .Values.routes.existingConfigMap }}
{{- end -}}

{{/* The partitions with tasks: no more pods than these can judge events. */}}
{{- define "oncebus.partitions" -}}
{{- add (int .Values.app.partitions) (int .Values.app.prepartitionedPartitions) -}}
{{- end -}}

{{/* check fails for values that no schema can compare. */}}
{{- define "oncebus.check" -}}
{{- if not .Values.kafka.brokers -}}
{{- fail "kafka.brokers is empty: name at least one, as by --set 'kafka.brokers={kafka:9092}'" -}}
{{- end -}}
{{- $partitions := int (include "oncebus.partitions" .) -}}
{{- if gt (int .Values.run.replicas) $partitions -}}
{{- fail (printf "run.replicas is %d, more than the %d partitions of app.partitions and app.prepartitionedPartitions: the pods above that number would judge no event" (int .Values.run.replicas) $partitions) -}}
{{- end -}}
{{- if .Values.keda.enabled -}}
{{- if gt (int .Values.keda.maxReplicas) $partitions -}}
{{- fail (printf "keda.maxReplicas is %d, more than the %d partitions of app.partitions and app.prepartitionedPartitions: the pods above that number would judge no event" (int .Values.keda.maxReplicas) $partitions) -}}
{{- end -}}
{{- if lt (int .Values.keda.maxReplicas) (int .Values.run.replicas) -}}
{{- fail (printf "keda.maxReplicas is %d, less than run.replicas (%d), which is the fewest" (int .Values.keda.maxReplicas) (int .Values.run.replicas)) -}}
{{- end -}}
{{- if not .Values.keda.serverAddress -}}
{{- fail "keda.serverAddress is empty: name the Prometheus that scrapes the pods" -}}
{{- end -}}
{{- if and .Values.keda.cpuUtilization (not (dig "requests" "cpu" "" .Values.run.resources)) -}}
{{- fail "keda.cpuUtilization is a percentage of run.resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- if not (or .Values.keda.query .Values.serviceMonitor.enabled) -}}
{{- fail "keda.query is empty and serviceMonitor.enabled is false: the query of the chart needs the labels that the ServiceMonitor gives" -}}
{{- end -}}
{{- end -}}
{{- if eq (empty .Values.routes.file) (empty .Values.routes.existingConfigMap) -}}
{{- fail "set routes.file (--set-file routes.file=routes.yaml) or routes.existingConfigMap, and not both" -}}
{{- end -}}
{{- with .Values.kafka.tls -}}
{{- if and (not .existingSecret) (or .caKey .certKey .keyKey) -}}
{{- fail "kafka.tls names keys, and no existingSecret that has them" -}}
{{- end -}}
{{- if ne (empty .certKey) (empty .keyKey) -}}
{{- fail "kafka.tls: certKey and keyKey are set together or not at all" -}}
{{- end -}}
{{- end -}}
{{- with .Values.kafka.sasl -}}
{{- if and .mechanism (not .existingSecret) -}}
{{- fail (printf "kafka.sasl.mechanism is %s, and kafka.sasl.existingSecret names no Secret with its credential" .mechanism) -}}
{{- end -}}
{{- if and .mechanism (ne .mechanism "OAUTHBEARER") (not .username) -}}
{{- fail (printf "kafka.sasl.mechanism is %s, and kafka.sasl.username is empty" .mechanism) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.brokers) -}}
{{- fail "networkPolicy.brokers is empty: with networkPolicy.enabled the pods could connect to no broker" -}}
{{- end -}}
{{- if and .Values.admin.tls.clientCAKey (not .Values.admin.tls.existingSecret) -}}
{{- fail "admin.tls.clientCAKey is set, and no existingSecret that has it" -}}
{{- end -}}
{{- if and .Values.admin.tls.existingSecret .Values.serviceMonitor.enabled (not .Values.serviceMonitor.tlsConfig) -}}
{{- fail "serviceMonitor.tlsConfig is empty, and admin.tls.existingSecret is not: name the authorities that the scrape trusts" -}}
{{- end -}}
{{- if and .Values.ingress.tls.clientCAKey (not .Values.ingress.tls.existingSecret) -}}
{{- fail "ingress.tls.clientCAKey is set, and no existingSecret that has it" -}}
{{- end -}}
{{- end -}}

{{/* Settings of both components. Secrets are files: a process reads them again when they change, and no environment shows them. */}}
{{- define "oncebus.environ" -}}
{{- $v := .root.Values -}}
- name: ONCEBUS_BROKERS
  value: {{ join "," $v.kafka.brokers | quote }}
- name: ONCEBUS_APP_ID
  value: {{ $v.app.id | quote }}
# A static name: the group gives the next pod of this name the tasks of the last one.
- name: ONCEBUS_INSTANCE_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: ONCEBUS_ROUTES
  value: {{ printf "/etc/oncebus/routes/%s" $v.routes.key | quote }}
- name: ONCEBUS_ADMIN_ADDR
  value: {{ printf "0.0.0.0:%d" (int $v.admin.port) | quote }}
- name: ONCEBUS_LOG_LEVEL
  value: {{ $v.log.level | quote }}
- name: ONCEBUS_LOG_FORMAT
  value: {{ $v.log.format | quote }}
- name: ONCEBUS_PARTITIONS
  value: {{ $v.app.partitions | int | quote }}
- name: ONCEBUS_REPLICATION_FACTOR
  value: {{ $v.app.replicationFactor | int | quote }}
- name: ONCEBUS_MIN_INSYNC_REPLICAS
  value: {{ $v.app.minInsyncReplicas | int | quote }}
- name: ONCEBUS_CREATE_TOPICS
  value: {{ $v.app.createTopics | quote }}
{{- if $v.admin.token.existingSecret }}
- name: ONCEBUS_ADMIN_TOKEN_FILE
  value: {{ printf "/etc/oncebus/admin/%s" $v.admin.token.key | quote }}
{{- end }}
{{- if $v.admin.tls.existingSecret }}
- name: ONCEBUS_ADMIN_TLS_CERT_FILE
  value: /etc/oncebus/admin-tls/tls.crt
- name: ONCEBUS_ADMIN_TLS_KEY_FILE
  value: /etc/oncebus/admin-tls/tls.key
{{- if $v.admin.tls.clientCAKey }}
- name: ONCEBUS_ADMIN_TLS_CLIENT_CA_FILE
  value: {{ printf "/etc/oncebus/admin-tls/%s" $v.admin.tls.clientCAKey | quote }}
{{- end }}
{{- end }}
{{- if $v.keySecret.existingSecret }}
- name: ONCEBUS_KEY_SECRET_FILE
  value: {{ printf "/etc/oncebus/key/%s" $v.keySecret.key | quote }}
{{- end }}
{{- with $v.kafka.tls }}
{{- if .enabled }}
- name: ONCEBUS_TLS_ENABLED
  value: "true"
{{- if .caKey }}
- name: ONCEBUS_TLS_CA_FILE
  value: {{ printf "/etc/oncebus/kafka-tls/%s" .caKey | quote }}
{{- end }}
{{- if .certKey }}
- name: ONCEBUS_TLS_CERT_FILE
  value: {{ printf "/etc/oncebus/kafka-tls/%s" .certKey | quote }}
- name: ONCEBUS_TLS_KEY_FILE
  value: {{ printf "/etc/oncebus/kafka-tls/%s" .keyKey | quote }}
{{- end }}
{{- if .serverName }}
- name: ONCEBUS_TLS_SERVER_NAME
  value: {{ .serverName | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.kafka.sasl }}
{{- if .mechanism }}
- name: ONCEBUS_SASL_MECHANISM
  value: {{ .mechanism | quote }}
{{- if eq .mechanism "OAUTHBEARER" }}
{{- if .oauth.tokenURL }}
- name: ONCEBUS_SASL_OAUTH_TOKEN_URL
  value: {{ .oauth.tokenURL | quote }}
- name: ONCEBUS_SASL_OAUTH_CLIENT_ID
  value: {{ .oauth.clientID | quote }}
- name: ONCEBUS_SASL_OAUTH_CLIENT_SECRET_FILE
  value: {{ printf "/etc/oncebus/sasl/%s" .oauth.clientSecretKey | quote }}
{{- if .oauth.scopes }}
- name: ONCEBUS_SASL_OAUTH_SCOPES
  value: {{ .oauth.scopes | quote }}
{{- end }}
{{- else }}
- name: ONCEBUS_SASL_TOKEN_FILE
  value: {{ printf "/etc/oncebus/sasl/%s" .tokenKey | quote }}
{{- end }}
{{- else }}
- name: ONCEBUS_SASL_USERNAME
  value: {{ .username | quote }}
- name: ONCEBUS_SASL_PASSWORD_FILE
  value: {{ printf "/etc/oncebus/sasl/%s" .passwordKey | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $value := $v.settings }}
- name: {{ $name }}
  {{- /* A number of a values file is a float64, which would be written as 1.34217728e+08. */}}
  value: {{ if kindIs "float64" $value }}{{ $value | int64 | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}
{{- end }}
{{- end -}}

{{/* Directories, not single files: only those follow a change of the ConfigMap or Secret. */}}
{{- define "oncebus.mounts" -}}
{{- $v := .root.Values -}}
- name: routes
  mountPath: /etc/oncebus/routes
  readOnly: true
{{- if $v.admin.token.existingSecret }}
- name: admin
  mountPath: /etc/oncebus/admin
  readOnly: true
{{- end }}
{{- if $v.admin.tls.existingSecret }}
- name: admin-tls
  mountPath: /etc/oncebus/admin-tls
  readOnly: true
{{- end }}
{{- if $v.keySecret.existingSecret }}
- name: key
  mountPath: /etc/oncebus/key
  readOnly: true
{{- end }}
{{- if and $v.kafka.tls.enabled $v.kafka.tls.existingSecret }}
- name: kafka-tls
  mountPath: /etc/oncebus/kafka-tls
  readOnly: true
{{- end }}
{{- if $v.kafka.sasl.mechanism }}
- name: sasl
  mountPath: /etc/oncebus/sasl
  readOnly: true
{{- end }}
{{- end -}}

{{- define "oncebus.volumes" -}}
{{- $v := .root.Values -}}
- name: routes
  configMap:
    name: {{ include "oncebus.routesConfigMap" .root }}
{{- if $v.admin.token.existingSecret }}
- name: admin
  secret:
    secretName: {{ $v.admin.token.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if $v.admin.tls.existingSecret }}
- name: admin-tls
  secret:
    secretName: {{ $v.admin.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if $v.keySecret.existingSecret }}
- name: key
  secret:
    secretName: {{ $v.keySecret.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if and $v.kafka.tls.enabled $v.kafka.tls.existingSecret }}
- name: kafka-tls
  secret:
    secretName: {{ $v.kafka.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if $v.kafka.sasl.mechanism }}
- name: sasl
  secret:
    secretName: {{ $v.kafka.sasl.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* The user and group of the image. The group may write to the volume and read the secrets. */}}
{{- define "oncebus.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "oncebus.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The kubelet does not verify the certificate. */}}
{{- define "oncebus.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (not (empty .root.Values.admin.tls.existingSecret)) -}}
{{- range $name, $path := dict "startup" "/healthz" "liveness" "/healthz" "readiness" "/readyz" }}
{{- with index (index $.root.Values $.component).probes $name }}
{{ $name }}Probe:
  httpGet: {path: {{ $path }}, port: admin, scheme: {{ $scheme }}}
  periodSeconds: {{ .periodSeconds }}
  failureThreshold: {{ .failureThreshold }}
  timeoutSeconds: {{ .timeoutSeconds }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where pods go, and what else a pod's specification has for both components. */}}
{{- define "oncebus.placement" -}}
{{- $values := index .root.Values .component -}}
{{- $selector := include "oncebus.selector" . -}}
serviceAccountName: {{ include "oncebus.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "oncebus.podSecurity" . | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or $values.topologySpread.node $values.topologySpread.zone }}
topologySpreadConstraints:
{{- with $values.topologySpread.node }}
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: {{ . }}
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
{{- end }}
{{- with $values.topologySpread.zone }}
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: {{ . }}
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A change of the routes file has to roll the pods; another version of the chart alone must not, so its label is not here. */}}
{{- define "oncebus.podMetadata" -}}
{{- $values := index .root.Values .component -}}
labels:
  {{- include "oncebus.selector" . | nindent 2 }}
  {{- with $values.pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if or .root.Values.routes.file $values.pod.annotations }}
annotations:
  {{- with .root.Values.routes.file }}
  checksum/routes: {{ sha256sum . }}
  {{- end }}
  {{- with $values.pod.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}
