{{- define "osrerank.name" -}}
{{- if contains "osrerank" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-osrerank" .Release.Name }}{{ end }}
{{- end }}

{{/* Labels that never change: (dict "root" $ "component" "worker"). */}}
{{- define "osrerank.selector" -}}
app.kubernetes.io/name: osrerank
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "osrerank.labels" -}}
{{ include "osrerank.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "osrerank.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "osrerank.name" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{/* The image: (dict "root" $ "gpu" true). */}}
{{- define "osrerank.image" -}}
{{- $image := .root.Values.image }}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default (ternary "gpu" "cpu" .gpu) }}
{{- end }}
{{- end }}

{{/* Name, namespace and labels of an object of a component, or of all: (dict "root" $ "component" "worker"). */}}
{{- define "osrerank.metadata" -}}
name: {{ include "osrerank.name" .root }}{{ with .component }}-{{ . }}{{ end }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "osrerank.labels" . | nindent 2 }}
{{- end }}

{{/* Values that contradict each other, which values.schema.json cannot see. */}}
{{- define "osrerank.check" -}}
{{- $gone := dict "workersKey" "name its Secret as secrets.signingKey, which signs both messages and scores" }}
{{- $_ := set $gone "cacheKey" "name its Secret as secrets.signingKey, which signs both messages and scores" }}
{{- $_ := set $gone "vectorsRedisUrl" "leave it out: the server keeps vectors in the Redis of secrets.redisUrl" }}
{{- range $name, $fix := $gone }}
{{- if hasKey $.Values.secrets $name }}
{{- fail (printf "secrets.%s is gone; %s" $name $fix) }}
{{- end }}
{{- end }}
{{- if and .Values.worker.enabled .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" }}
{{- end }}
{{- if and .Values.server.enabled (le (int .Values.server.terminationGracePeriodSeconds) (int (add 5 .Values.server.timeoutSeconds))) }}
{{- fail "server.terminationGracePeriodSeconds must be more than 5 s above server.timeoutSeconds, so that accepted requests are answered" }}
{{- end }}
{{- $broker := or .Values.secrets.redisUrl.secretName .Values.secrets.brokerUrl.secretName }}
{{- if and (not $broker) (or .Values.worker.enabled (eq .Values.server.backend "workers")) }}
{{- fail "secrets.redisUrl.secretName names no Secret: workers need the URL of a Redis" }}
{{- end }}
{{- end }}
