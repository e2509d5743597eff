{{/* What Pods of server and workers have in common: (dict "root" $ "component" "worker" "values" .Values.worker). */}}
{{- define "osrerank.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "osrerank.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "osrerank.environment" -}}
- name: OSRERANK_SECRETS_DIR
  value: /run/secrets/osrerank
- name: OSRERANK_MODEL
  value: {{ .root.Values.model | quote }}
- name: OSRERANK_VECTORS_FOLDER
  value: /var/lib/osrerank/vectors
- name: OSRERANK_VECTORS_MB
  value: {{ .root.Values.vectors.megabytes | quote }}
{{- range $name, $value := .values.env }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{- define "osrerank.mounts" -}}
- name: secrets
  mountPath: /run/secrets/osrerank
  readOnly: true
- name: tmp
  mountPath: /tmp
- name: models
  mountPath: /var/cache/huggingface
- name: vectors
  mountPath: /var/lib/osrerank
{{- if .Values.redis.tlsSecretName }}
- name: redis-tls
  mountPath: /run/tls
  readOnly: true
{{- end }}
{{- end }}

{{/* A setting is read from the file of its name; a component sees only its own: "settings" (list "redisUrl" ...). */}}
{{- define "osrerank.volumes" -}}
{{- $root := .root -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range .settings }}
      {{- with index $root.Values.secrets . | merge (dict "setting" .) }}
      {{- if .secretName }}
      - secret:
          name: {{ .secretName }}
          items:
            - key: {{ .key }}
              path: osrerank_{{ snakecase .setting }}
      {{- end }}
      {{- end }}
      {{- end }}
- name: tmp
  emptyDir: { sizeLimit: 256Mi }
- name: models
  {{- if $root.Values.modelCache.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ $root.Values.modelCache.existingClaim }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ $root.Values.modelCache.sizeLimit }}
  {{- end }}
- name: vectors
  emptyDir:
    sizeLimit: {{ div (mul $root.Values.vectors.megabytes 5) 4 }}Mi
{{- with $root.Values.redis.tlsSecretName }}
- name: redis-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "osrerank.placement" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "osrerank.selector" . | nindent 8 }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "osrerank.podMetadata" -}}
labels:
  {{- include "osrerank.labels" . | nindent 2 }}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "osrerank.podStart" -}}
serviceAccountName: {{ include "osrerank.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
securityContext:
  {{- include "osrerank.podSecurity" . | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
